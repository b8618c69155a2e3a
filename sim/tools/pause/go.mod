module pulumi-vllm.local/sim/tools/pause

go 1.26.8
