"""The configuration of a stack: typed, strict, every fault at once. Imports no Pulumi."""

from infra.config.errors import ConfigError
from infra.config.stack import SECRET_KEYS, StackConfig, stack_config
from infra.config.stack_file import read, stack_path

__all__ = ["SECRET_KEYS", "ConfigError", "StackConfig", "read", "stack_config", "stack_path"]
