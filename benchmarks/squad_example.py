"""One question under several methods: the example of De Cao et al. 2020's notebook, with the words each method finds.

    python benchmarks/squad_example.py --model QA --explainer FOLDER [--steps 100]

Prints the prediction, the verified words of the mask, and the five words with the highest score of each method:
`SurrogateMask`, attention, gradient, integrated gradients, the bottleneck of Schulz et al. 2020, the noise of Guan et
al. 2019, and the smallest sets of words that keep the answer, found by erasing all others.
"""

import argparse
import json

import diffmask as dm
from diffmask.methods.subset_search import SubsetSearch
from diffmask.tasks.question_answering import QuestionAnswering

QUESTION = "Where did the Broncos practice for the Super Bowl?"
PASSAGE = (
    "The Panthers used the San Jose State practice facility and stayed at the San Jose Marriott. "
    "The Broncos practiced at Stanford University and stayed at the Santa Clara Marriott."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--explainer", required=True, help="folder of a fitted SurrogateMask")
    parser.add_argument("--steps", type=int, default=100, help="steps of the methods that optimise each text")
    arguments = parser.parse_args()
    row = ((QUESTION, PASSAGE), "Stanford University")
    task = QuestionAnswering(arguments.model, train=[row], test=[row])
    mask = dm.load_explainer(arguments.explainer, task)
    explanation = mask(question=QUESTION, context=PASSAGE)
    explanation.show()
    methods = {
        "attention": dm.Attention(),
        "gradient": dm.Gradient(),
        "integrated gradients": dm.IntegratedGradients(n_steps=arguments.steps),
        "Schulz et al.": dm.Bottleneck(steps=arguments.steps),
        "Guan et al.": dm.NoiseTolerance(rate=5.0, samples=4, max_steps=max(1, arguments.steps // 4)),
        "smallest sets": SubsetSearch(),
    }
    explainers = {"surrogate-mask": mask} | {name: method.fit(task) for name, method in methods.items()}
    for name, explainer in explainers.items():
        attribution = explainer(question=QUESTION, context=PASSAGE, verify=False)
        ranked = sorted(zip(attribution.scores.tolist(), attribution.words, strict=True), reverse=True)[:5]
        print(json.dumps({"method": name, "words": [word for score, word in ranked if score > 0]}), flush=True)


if __name__ == "__main__":
    main()
