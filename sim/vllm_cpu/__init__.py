"""The real vLLM without a GPU: its Python environment, a model, a process, a container image."""

from sim.vllm_cpu.container_image import Image, image
from sim.vllm_cpu.installation import environment
from sim.vllm_cpu.model import MODEL_ID, ModelFiles, tiny_model
from sim.vllm_cpu.process import Server, ServerError, server

__all__ = ["MODEL_ID", "Image", "ModelFiles", "Server", "ServerError", "environment", "image", "server", "tiny_model"]
