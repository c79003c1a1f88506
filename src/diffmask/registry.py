"""Registry of methods, tasks and metrics by name. Listing the entries imports none of them."""

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from diffmask.errors import ConfigError, nearest
from diffmask.imports import import_quickly


@dataclass(frozen=True)
class Entry:
    """A registered config class: `target` is 'module:Class' or the class itself, `summary` one line of description."""

    kind: str
    name: str
    target: str | type
    summary: str

    def load(self) -> Any:
        """Import the module and return the class."""
        if not isinstance(self.target, str):
            return self.target
        module, _, attribute = self.target.partition(":")
        return getattr(import_quickly(module), attribute)


_ENTRIES: dict[tuple[str, str], Entry] = {}


def register(kind: str, name: str, target: str | type, summary: str) -> None:
    """Register a config class by name; a later registration replaces an earlier one of the same name."""
    _ENTRIES[kind, name] = Entry(kind, name, target, summary)


def entries(kind: str) -> list[Entry]:
    """Return all entries of a kind ('method', 'task' or 'metric'), including those of installed plug-ins."""
    _load_plugins(kind)
    return sorted((entry for entry in _ENTRIES.values() if entry.kind == kind), key=lambda entry: entry.name)


def find(kind: str, name: str, where: str = "") -> Entry:
    """Return the entry of that name, or raise a ConfigError that suggests the most similar one."""
    known = {entry.name: entry for entry in entries(kind)}
    if name not in known:
        place = f"{where}: " if where else ""
        raise ConfigError(f"{place}there is no {kind} '{name}'; {nearest(name, known)}")
    return known[name]


def _load_plugins(kind: str) -> None:
    """Register the entry points of the group `diffmask.method`, `.task` or `.metric` of installed packages."""
    for point in entry_points(group=f"diffmask.{kind}"):
        if (kind, point.name) not in _ENTRIES:
            register(kind, point.name, point.value, f"from {point.dist.name if point.dist else 'a plug-in'}")


_TASKS = (
    (
        "toy",
        "tasks.toy:ToyTaskConfig",
        "synthetic: does digit m occur more often than n? ground truth known (De Cao 2020)",
    ),
    (
        "text-classification",
        "tasks.text.text_configs:TextClassificationConfig",
        "a Hugging Face classifier on texts or pairs of texts",
    ),
    (
        "fine-tuned-classification",
        "tasks.text.text_configs:FineTunedClassificationConfig",
        "an encoder fine-tuned on texts or pairs of texts",
    ),
    (
        "question-answering",
        "tasks.text.text_configs:QuestionAnsweringConfig",
        "a Hugging Face model that marks the answer to a question in a passage",
    ),
    (
        "fine-tuned-question-answering",
        "tasks.text.text_configs:FineTunedQuestionAnsweringConfig",
        "an encoder fine-tuned to mark answers, on SQuAD or a table",
    ),
    (
        "token-classification",
        "tasks.text.text_configs:TokenClassificationConfig",
        "a Hugging Face token classifier; a row per predicted entity, or per word",
    ),
    (
        "fine-tuned-token-classification",
        "tasks.text.text_configs:FineTunedTokenClassificationConfig",
        "an encoder fine-tuned to tag words, on files in CoNLL's format",
    ),
    (
        "fill-mask",
        "tasks.text.text_configs:MaskedWordConfig",
        "a masked language model on texts with one blank",
    ),
    (
        "sentence-similarity",
        "tasks.text.text_configs:SentenceSimilarityConfig",
        "a sentence encoder: the similarity of a text to another one",
    ),
    (
        "text-generation",
        "tasks.generation.generation_config:TextGenerationConfig",
        "a decoder language model on prompts: which parts did its response need?",
    ),
    (
        "news-recommender",
        "tasks.recommender.recommender_configs:NewsRecommenderConfig",
        "a trained news recommender (NRMS) on impressions in MIND's format",
    ),
    (
        "trained-news-recommender",
        "tasks.recommender.recommender_configs:TrainedNewsRecommenderConfig",
        "NRMS trained on impressions in MIND's format (Wu 2019)",
    ),
    (
        "bilstm",
        "tasks.bilstm.bilstm_config:BiLSTMConfig",
        "a BiLSTM with attention on bABI, SST and others (Madsen 2022)",
    ),
)
_METHODS = (
    ("diffmask", "methods.diffmask.gated:DiffMask", "masks by hard concrete gates, one pass per text (De Cao 2020)"),
    ("surrogate-mask", "methods.diffmask.surrogate:SurrogateMask", "masks by an additive surrogate, one pass per text"),
    (
        "nested-diffmask",
        "methods.diffmask.nested:NestedDiffMask",
        "nested masks for several margins, and a ranking",
    ),
    ("amortised", "methods.amortised.amortised:Amortised", "signed scores from a network in one pass (FastSHAP)"),
    (
        "attributive-masking",
        "methods.amortised.attributive_masking:AttributiveMasking",
        "a mask from one pass whose complement changes the prediction (Barkan 2024)",
    ),
    (
        "diffmask-per-input",
        "methods.diffmask.per_input:PerInputDiffMask",
        "masks optimised for each text (De Cao 2020)",
    ),
    (
        "diffmask-reinforce",
        "methods.diffmask.per_input:PerInputReinforce",
        "the same with binary masks and score-function gradients",
    ),
    (
        "exact-erasure",
        "methods.leave_one_out:ExactErasure",
        "the smallest sufficient set, if the task knows it",
    ),
    (
        "leave-one-out",
        "methods.leave_one_out:LeaveOneOut",
        "erase, delete or hide one token at a time (Li 2016)",
    ),
    (
        "context-cite",
        "methods.unit_ablation:ContextCite",
        "a sparse linear model of random ablations of a prompt's parts (Cohen-Wang 2024)",
    ),
    (
        "kernel-shap",
        "methods.unit_ablation:KernelShap",
        "Shapley values of a prompt's parts, sampled or exact (Lundberg 2017)",
    ),
    (
        "subset-search",
        "methods.subset_search:SubsetSearch",
        "the smallest sets that keep the prediction (Li 2016)",
    ),
    (
        "greedy-search",
        "methods.subset_search:GreedySearch",
        "the order with the best sufficiency and comprehensiveness",
    ),
    ("gradient", "methods.gradients:Gradient", "norm of the gradient per token (Simonyan 2014)"),
    ("input-x-gradient", "methods.gradients:InputXGradient", "embedding times gradient (Shrikumar 2017)"),
    (
        "integrated-gradients",
        "methods.gradients:IntegratedGradients",
        "gradients averaged on the path from a baseline (Sundararajan 2017)",
    ),
    ("attention", "methods.attention:Attention", "mean attention weight of each token (Bahdanau 2015)"),
    ("attention-rollout", "methods.attention:AttentionRollout", "attention multiplied through the layers (Abnar 2020)"),
    ("bottleneck", "methods.bottleneck:Bottleneck", "information bottleneck optimised per text (Schulz 2020)"),
    (
        "noise-tolerance",
        "methods.noise.method:NoiseTolerance",
        "1 / the largest noise each token tolerates (Guan 2019)",
    ),
    (
        "mutual-information",
        "methods.mutual_information:MutualInformation",
        "mutual information of words and labels in the data (Madsen 2022)",
    ),
    ("uniform", "methods.baselines:Uniform", "baseline: the same score for every token"),
    ("random", "methods.baselines:Random", "baseline: random scores"),
)
_METRICS = (
    (
        "divergence-to-truth",
        "metrics.ground_truth:DivergenceToTruth",
        "KL and JS divergence from the ground truth to the normalised scores (De Cao 2020)",
    ),
    (
        "comprehensiveness",
        "metrics.faithfulness:Comprehensiveness",
        "comprehensiveness and sufficiency over ratios (DeYoung 2020)",
    ),
    (
        "deletion-insertion",
        "metrics.perturbation_curves:DeletionInsertion",
        "areas under the deletion and insertion curves (Petsiuk 2018)",
    ),
    (
        "f-fidelity",
        "metrics.f_fidelity:FFidelity",
        "erasure within the distribution of a copy fine-tuned once on random masks (Zheng 2025)",
    ),
    ("decision-flip", "metrics.perturbation_curves:DecisionFlip", "share of tokens whose removal flips the prediction"),
    ("infidelity", "metrics.robustness:Infidelity", "do scores predict the effect of perturbations? (Yeh 2019)"),
    ("sensitivity", "metrics.robustness:MaxSensitivity", "largest change of the scores under small noise (Yeh 2019)"),
    (
        "mass-on-evidence",
        "metrics.ground_truth:MassOnEvidence",
        "share of the score mass on known evidence, such as bABI's supporting facts",
    ),
    (
        "evidence-sentence",
        "metrics.evidence:EvidenceSentence",
        "is the sentence of the answer, or a supporting fact, ranked first?",
    ),
    (
        "randomised-model",
        "metrics.sanity_checks:RandomisedModel",
        "do scores change when the weights are randomised? (Adebayo 2018)",
    ),
    (
        "human-rationales",
        "metrics.rationales:HumanRationales",
        "token F1, span F1 and AUPRC against human rationales (DeYoung 2020)",
    ),
    (
        "counterfactual-edits",
        "metrics.counterfactual:CounterfactualEdits",
        "are the words ranked first whose edit changes the prediction? (Kaushik 2020)",
    ),
    (
        "planted-shortcut",
        "metrics.shortcuts:PlantedShortcut",
        "is a planted shortcut token ranked first? (Bastings 2022)",
    ),
    ("stability", "metrics.sanity_checks:StabilityOverSeeds", "rank agreement of fits with different seeds"),
    ("roar", "metrics.roar.roar_metric:Roar", "mask the most important tokens and retrain (Hooker 2019, Madsen 2022)"),
    (
        "recursive-roar",
        "metrics.roar.roar_metric:RecursiveRoar",
        "ROAR with importances recomputed at each step (Madsen 2022)",
    ),
    (
        "linear-datamodelling",
        "metrics.prompt_parts:LinearDatamodelling",
        "do sums of scores rank random ablations of a prompt's parts? (Park 2023)",
    ),
    (
        "part-erasure",
        "metrics.prompt_parts:PartErasure",
        "top-k drop, sufficiency and identical responses when parts of a prompt are erased",
    ),
    ("fidelity", "metrics.fidelity:Fidelity", "does the prediction survive the learned masks?"),
)
_CAPTUM = (
    *("DeepLift", "FeatureAblation", "GradientShap", "InputXGradient", "IntegratedGradients", "KernelShap"),
    *("LayerIntegratedGradients", "Lime", "Occlusion", "Saliency", "ShapleyValueSampling"),
)

for _kind, _rows in (("task", _TASKS), ("method", _METHODS), ("metric", _METRICS)):
    for _name, _target, _summary in _rows:
        register(_kind, _name, f"diffmask.{_target}", _summary)
for _name in _CAPTUM:
    register(
        "method",
        f"captum:{_name}",
        f"diffmask.methods.captum:Captum{_name}",
        "by Captum; needs diffmask[captum]",
    )
