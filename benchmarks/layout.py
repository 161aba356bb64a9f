"""What channels last gives on this CPU: gradients and whole FRInGe maps, against the contiguous layout, in one run."""

import time

import torch

import fringe
from fringe.classifier import Classifier
from shared_models import images, model


def seconds(classifier: Classifier, x: torch.Tensor, method: str) -> float:
    start = time.perf_counter()
    fringe.attribute(classifier, x, method=method)
    return (time.perf_counter() - start) / len(x)


def main() -> None:
    torch.set_num_threads(1)
    for name, count in (("cifar_resnet20", 16), ("mobilenet_v1_025", 4), ("mobilenet_v2", 1)):
        x = images(name, count)
        for method in ("ig", "fringe"):
            best = dict.fromkeys((True, False), float("inf"))
            for _ in range(3 if name != "mobilenet_v2" else 1):
                for last in best:
                    classifier = Classifier(model(name), batch_size=16)
                    if not last:
                        classifier.layout = lambda x: torch.contiguous_format
                    best[last] = min(best[last], seconds(classifier, x, method))
            print(
                f"{name} {method}: {best[True]:.3f} s an image, {best[False] / best[True]:.2f} x contiguous", flush=True
            )


if __name__ == "__main__":
    main()
