"""Fine-tune open LLMs on rented GPUs, and never pay for an instance that does nothing."""

__all__ = ["__version__"]

__version__ = "0.1.0"
