"""Masks and attributions for NLP models, and a benchmark of their faithfulness.

Names are imported at first use: `import diffmask` does not load torch.
"""

from typing import Any

from diffmask.imports import import_quickly

__version__ = "0.1.0"

_HOMES = {
    "Attribution": "core.batch",
    "Batch": "core.batch",
    "Explanation": "explanation.explanation",
    "Aggregate": "results.aggregation",
    "ScoredText": "results.aggregation",
    "aggregate": "results.aggregation",
    "explain": "workspace.quick",
    "ranking": "core.batch",
    "racu": "results.racu",
    "Task": "core.task",
    "TaskConfig": "core.task",
    "Retrainable": "core.capabilities",
    "RowText": "core.capabilities",
    "Site": "core.hooks",
    "Method": "core.explainer",
    "Explainer": "core.explainer",
    "Metric": "metrics.metric",
    "Record": "results.records",
    "Experiment": "experiments.experiment",
    "run_experiment": "experiments.runner",
    "benchmark": "benchmarking.compare_methods",
    "compare": "benchmarking.compare_models",
    "ModelComparison": "results.word_shift",
    "HardConcrete": "methods.diffmask.hard_concrete",
    "Probe": "methods.diffmask.probe",
    "SimpleProbe": "methods.diffmask.probe",
    "LayerwiseProbe": "methods.diffmask.probe",
    "BenchmarkResult": "results.benchmark_result",
    "MetricInfo": "results.benchmark_result",
    "Store": "core.store",
    "Workspace": "workspace.workspace",
    "save_explainer": "workspace.persistence",
    "push_explainer": "workspace.persistence",
    "load_explainer": "workspace.persistence",
    "ToyTaskConfig": "tasks.toy",
    "TextClassification": "tasks.classification",
    "QuestionAnswering": "tasks.question_answering",
    "QuestionEncodingConfig": "tasks.question_answering",
    "QuestionAnsweringConfig": "tasks.text.text_configs",
    "FineTunedQuestionAnsweringConfig": "tasks.text.text_configs",
    "TokenClassification": "tasks.token_classification",
    "TokenEncodingConfig": "tasks.token_classification",
    "TokenClassificationConfig": "tasks.text.text_configs",
    "FineTunedTokenClassificationConfig": "tasks.text.text_configs",
    "MultipleChoice": "tasks.multiple_choice",
    "ChoiceEncodingConfig": "tasks.multiple_choice",
    "MaskedWord": "tasks.masked_word",
    "SentenceSimilarity": "tasks.sentence_similarity",
    "NewsRecommender": "tasks.recommender.news_recommender",
    "NRMSConfig": "tasks.recommender.nrms",
    "NRMSTraining": "tasks.recommender.nrms_training",
    "Impression": "datasets.mind",
    "Candidate": "datasets.mind",
    "load_mind": "datasets.mind",
    "MindGenerator": "datasets.mind_generator",
    "TextEncodingConfig": "tasks.text.encoding",
    "TextClassificationConfig": "tasks.text.text_configs",
    "FineTunedClassificationConfig": "tasks.text.text_configs",
    "TextGeneration": "tasks.generation.text_generation",
    "SequenceToSequence": "tasks.generation.sequence_to_sequence",
    "TextGenerationConfig": "tasks.generation.generation_config",
    "PromptEncodingConfig": "tasks.generation.prompt_encoding",
    "ResponseExplanation": "explanation.response",
    "planted_facts": "datasets.planted_facts",
    "FineTuning": "tasks.text.finetuning",
    "FineTuningSource": "tasks.text.retraining",
    "load_classifier": "tasks.text.pretrained",
    "DiffMask": "methods.diffmask.gated",
    "NestedDiffMask": "methods.diffmask.nested",
    "SurrogateMask": "methods.diffmask.surrogate",
    "Amortised": "methods.amortised.amortised",
    "AttributiveMasking": "methods.amortised.attributive_masking",
    "PerInputDiffMask": "methods.diffmask.per_input",
    "PerInputReinforce": "methods.diffmask.per_input",
    "LeaveOneOut": "methods.leave_one_out",
    "ContextCite": "methods.unit_ablation",
    "KernelShap": "methods.unit_ablation",
    "SubsetSearch": "methods.subset_search",
    "ExactErasure": "methods.leave_one_out",
    "GreedySearch": "methods.subset_search",
    "Gradient": "methods.gradients",
    "InputXGradient": "methods.gradients",
    "IntegratedGradients": "methods.gradients",
    "Attention": "methods.attention",
    "AttentionRollout": "methods.attention",
    "Bottleneck": "methods.bottleneck",
    "NoiseTolerance": "methods.noise.method",
    "MutualInformation": "methods.mutual_information",
    "Uniform": "methods.baselines",
    "Random": "methods.baselines",
    "from_function": "methods.custom",
    "amortised_report": "metrics.amortised_report",
    "Interpreter": "methods.noise.interpreter",
    "calculate_regularization": "methods.noise.interpreter",
    "DiffMaskError": "errors",
    "FitWarning": "errors",
    "InputWarning": "errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffmask' has no attribute '{name}'")
    return getattr(import_quickly(f"diffmask.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
