"""Write planner/data/models/*.json: config.json values of well-known models and the bytes of their weights.

    python -m scripts.make_model_data FACTS

FACTS is a folder with model-configs/*.json, the config.json of models whose weights were counted. The other models
are the table below: the values that their public config.json carries. Bytes of weights that no index gave are
computed from the layout, which reproduces the published totals of Qwen2.5-7B and Llama-3.1-8B to the byte.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from planner.models import weight_bytes_of

TARGET = Path(__file__).parent.parent / "planner" / "data" / "models"
INDEX = "config.json and safetensors index of the model"
LAYOUT = "config.json of the model; bytes computed from the layout"
ROUNDED = "config.json of the model; bytes rounded from the size of its files"
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
KEPT = (
    *("architectures", "model_type", *SIZES, "head_dim", "vocab_size", "max_position_embeddings", "rope_scaling"),
    *("tie_word_embeddings", "torch_dtype", "use_sliding_window", "sliding_window", "max_window_layers"),
    "quantization_config",
)

Entry = dict[str, Any]


def sized(architecture: str, kind: str, sizes: tuple[int, int, int, int, int], vocabulary: int, length: int) -> Entry:
    """What every config.json has; ``sizes`` in the order of SIZES."""
    return {
        "architectures": [architecture],
        "model_type": kind,
        **dict(zip(SIZES, sizes, strict=True)),
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
        "torch_dtype": "bfloat16",
    }


def qwen2(sizes: tuple[int, int, int, int, int], vocabulary: int, tied: bool) -> Entry:
    """Qwen2.5: it carries a sliding window that it does not use."""
    return sized("Qwen2ForCausalLM", "qwen2", sizes, vocabulary, 32768) | {
        "tie_word_embeddings": tied,
        "use_sliding_window": False,
        "sliding_window": 32768,
    }


def qwen3(sizes: tuple[int, int, int, int, int]) -> Entry:
    """Qwen3: heads of 128 whatever the hidden size."""
    return sized("Qwen3ForCausalLM", "qwen3", sizes, 151936, 40960) | {
        "head_dim": 128,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": None,
    }


def quantized(base: Entry, **quantization: Any) -> Entry:
    """A quantised checkpoint of a layout."""
    return base | {"quantization_config": quantization}


def measured(folder: Path, name: str) -> Entry:
    """The config.json of a model that was measured, without what the planner does not read."""
    config = json.loads((folder / "model-configs" / f"{name}.json").read_text(encoding="utf-8"))
    return {key: config[key] for key in KEPT if key in config}


def model(config: Entry, weight_bytes: int | None = None, **known: Any) -> Entry:
    """A catalogue entry; without ``weight_bytes`` they are computed from the layout."""
    return {
        "chatTemplate": known.get("chat", True),
        "gated": known.get("gated", False),
        "weightBytes": weight_bytes_of(config) if weight_bytes is None else weight_bytes,
        "estimated": known.get("estimated", False),
        "source": known.get("source", LAYOUT if weight_bytes is None else INDEX),
        "config": config,
    }


def catalogue(folder: Path) -> dict[str, Entry]:
    """Every model by its name on the hub."""
    llama = measured(folder, "llama-3.1-8b")
    llama_70b = llama | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    }
    fp8_group = {"weights": {"num_bits": 8, "type": "float"}}
    rounded = {"estimated": True, "source": ROUNDED}
    return {
        "Qwen/Qwen2.5-0.5B-Instruct": model(qwen2((896, 4864, 24, 14, 2), 151936, tied=True)),
        "Qwen/Qwen2.5-7B-Instruct": model(measured(folder, "qwen2.5-7b"), 15_231_233_024),
        "Qwen/Qwen2.5-7B-Instruct-AWQ": model(measured(folder, "qwen2.5-7b-awq"), estimated=True),
        "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": model(
            quantized(measured(folder, "qwen2.5-7b"), quant_method="gptq", bits=4, group_size=128, sym=True)
            | {"torch_dtype": "float16"},
            5_580_000_000,
            **rounded,
        ),
        "Qwen/Qwen2.5-32B-Instruct": model(qwen2((5120, 27648, 64, 40, 8), 152064, tied=False)),
        "Qwen/Qwen3-8B": model(qwen3((4096, 12288, 36, 32, 8))),
        "Qwen/Qwen3-8B-FP8": model(
            quantized(qwen3((4096, 12288, 36, 32, 8)), quant_method="fp8", weight_block_size=[128, 128]),
            9_440_000_000,
            **rounded,
        ),
        "Qwen/Qwen3-30B-A3B": model(
            qwen3((2048, 6144, 48, 32, 4))
            | {
                "architectures": ["Qwen3MoeForCausalLM"],
                "model_type": "qwen3_moe",
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
            }
        ),
        "meta-llama/Llama-3.1-8B": model(llama, 16_060_522_496, chat=False, gated=True),
        "meta-llama/Llama-3.1-8B-Instruct": model(llama, 16_060_522_496, gated=True),
        "meta-llama/Llama-3.3-70B-Instruct": model(llama_70b, gated=True),
        "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4": model(
            quantized(llama, quant_method="awq", bits=4, group_size=128, zero_point=True) | {"torch_dtype": "float16"},
            estimated=True,
        ),
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8": model(
            quantized(llama, quant_method="compressed-tensors", config_groups={"group_0": fp8_group}),
            9_080_000_000,
            **rounded,
        ),
        "google/gemma-2-9b-it": model(
            sized("Gemma2ForCausalLM", "gemma2", (3584, 14336, 42, 16, 8), 256000, 8192)
            | {"head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096},
            gated=True,
        ),
        "microsoft/Phi-3-mini-4k-instruct": model(
            sized("Phi3ForCausalLM", "phi3", (3072, 8192, 32, 32, 32), 32064, 4096)
            | {"tie_word_embeddings": False, "sliding_window": 2047}
        ),
        "openai/gpt-oss-20b": model(
            quantized(
                sized("GptOssForCausalLM", "gpt_oss", (2880, 2880, 24, 64, 8), 201088, 131072)
                | {
                    "head_dim": 64,
                    "tie_word_embeddings": False,
                    "sliding_window": 128,
                    "num_local_experts": 32,
                    "num_experts_per_tok": 4,
                },
                quant_method="mxfp4",
            ),
            13_760_000_000,
            **rounded,
        ),
        "deepseek-ai/DeepSeek-V2-Lite-Chat": model(
            sized("DeepseekV2ForCausalLM", "deepseek_v2", (2048, 10944, 27, 16, 16), 102400, 163840)
            | {
                "tie_word_embeddings": False,
                "kv_lora_rank": 512,
                "q_lora_rank": None,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 128,
                "v_head_dim": 128,
                "n_routed_experts": 64,
                "n_shared_experts": 2,
                "num_experts_per_tok": 6,
                "moe_intermediate_size": 1408,
                "first_k_dense_replace": 1,
            }
        ),
    }


def main(folder: Path) -> None:
    """Write one file for each model."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, entry in catalogue(folder).items():
        path = TARGET / f"{name.replace('/', '--')}.json"
        path.write_text(json.dumps({"id": name} | entry, indent=2) + "\n", encoding="utf-8")
        print(f"{name}: {entry['weightBytes']:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
