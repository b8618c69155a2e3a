module pulumi-vllm.local/sim/tools/stand-in

go 1.26.8
