"""What does a model need, and can the explanation be believed?

Names are imported when first used: `import diffmask` loads no torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Attribution": "batch",
    "Batch": "batch",
    "Explanation": "explanation",
    "ranking": "batch",
    "racu": "area",
    "Task": "task",
    "TaskRecipe": "task",
    "Site": "hooks",
    "Method": "explainer",
    "Explainer": "explainer",
    "Evaluation": "evaluation",
    "Record": "record",
    "Experiment": "experiment",
    "run_experiment": "run",
    "benchmark": "benchmarking.run",
    "Board": "board",
    "Measure": "board",
    "Store": "store",
    "Bench": "bench",
    "save_explainer": "persistence",
    "push_explainer": "persistence",
    "load_explainer": "persistence",
    "ToyTask": "tasks.toy",
    "TextClassification": "tasks.text",
    "Reading": "tasks.reading",
    "TextTask": "tasks.recipes",
    "FineTunedTask": "tasks.recipes",
    "FineTuning": "tasks.finetuning",
    "DiffMask": "methods.diffmask",
    "Amortised": "methods.amortised",
    "PerInput": "methods.per_input",
    "Reinforce": "methods.reinforce",
    "Erasure": "methods.erasure",
    "ErasureSearch": "methods.erasure_search",
    "ExactErasure": "methods.exact_erasure",
    "Greedy": "methods.greedy",
    "Gradient": "methods.gradient",
    "InputXGradient": "methods.input_x_gradient",
    "IntegratedGradient": "methods.integrated_gradient",
    "Attention": "methods.attention",
    "AttentionRollout": "methods.attention_rollout",
    "Bottleneck": "methods.bottleneck",
    "Noise": "methods.noise",
    "MutualInformation": "methods.mutual_information",
    "Uniform": "methods.constant",
    "Random": "methods.constant",
    "method": "methods.own",
    "Interpreter": "guan.interpreter",
    "calculate_regularization": "guan.interpreter",
    "DiffMaskError": "errors",
    "FitWarning": "errors",
    "InputWarning": "errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffmask' has no attribute '{name}'")
    return getattr(import_module(f"diffmask.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
