"""The configuration of a stack: typed, strict, every fault at once. Imports no Pulumi."""

from infra.config.errors import ConfigError
from infra.config.stack import SECRET_KEYS, EksClusterStackConfig, StackConfig, any_stack_config, stack_config
from infra.config.stack_file import read, read_any, stack_path

__all__ = [
    "SECRET_KEYS",
    "ConfigError",
    "EksClusterStackConfig",
    "StackConfig",
    "any_stack_config",
    "read",
    "read_any",
    "stack_config",
    "stack_path",
]
