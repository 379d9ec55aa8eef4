"""Tasks from existing training code: a Lightning module; a model and examples in Hugging Face's folders."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, arange, tensor
from torch.autograd import grad
from torch.utils.data import Dataset

from superadam_lab.tasks.own import task
from superadam_lab.tasks.registry import Task
from superadam_lab.tasks.supervised import Data

__all__ = ["huggingface", "lightning"]

FILES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
"""How the files of splits are called."""
IGNORED = -100
"""The label of what no loss is taken of, in torch as in transformers."""
HIDDEN = -1
"""The label of a test split whose labels are kept secret."""


def lightning(name: str, module: Callable[[], Any], data: Data | Callable[[], Data], **more: Any) -> Task:
    """A task from a LightningModule, with the loss of its `training_step`; evaluations run without dropout.

    `configure_optimizers` is not called, because the comparison sets the optimizer. `self.log` has no effect.

    Args:
        name: the name of the task.
        module: a function that returns the module. It is called with torch's generator set to the run's seed.
        data: loaders, datasets or tensors by split, or a function that returns them:
            `lambda: {"train": module.train_dataloader(), "valid": module.val_dataloader()}`.
        **more: options of `lab.task`: `batch`, `epochs`, `score`, `description`.
    """

    def loss(model: Any, batch: Any) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*self.trainer.*")  # of self.log
            found = model.training_step(batch, 0)
        found = found["loss"] if isinstance(found, dict) else found
        if not isinstance(found, Tensor):
            raise ValueError(
                f"training_step of {type(model).__name__} returned {type(found).__name__}: expected the loss, or a "
                "dict with it. Manual optimization cannot be compared"
            )
        return found

    loss.whole_batch = True  # type: ignore[attr-defined]
    return task(name, model=module, data=data, loss=loss, **{"description": "a Lightning module", **more})


def huggingface(
    name: str,
    model: str | Path,
    data: str | Path,
    *,
    text: str = "text",
    label: str | None = "label",
    length: int = 128,
    **more: Any,
) -> Task:
    """A task from two Hugging Face folders: one with a language model and its tokenizer, one with examples.

    With a label the task is text classification. With `label=None` the model must be a causal language model, and the
    loss is that of the next token; texts of fewer than two tokens are left out. Other models raise an error: use
    `lab.task` for them.

    Weights in the model's folder are loaded. Missing weights, or all if there are none, are drawn with the run's seed.
    The data are files train.jsonl, validation.jsonl and test.jsonl, or the output of `save_to_disk` of a `DatasetDict`,
    which needs the package `datasets`. The output of a single `Dataset` is used for training only. Nothing is
    downloaded.

    Args:
        name: the name of the task.
        model: the folder of the model and its tokenizer.
        data: the folder of the examples.
        text: the column with the text of an example.
        label: the column with the class number, 0, 1, …. A test split with hidden labels (-1) is left out. None for a
            causal language model.
        length: largest number of tokens per text; at most the number of positions of the model.
        **more: options of `lab.task`: `batch`, `epochs`, `description`.
    """

    def make() -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

        auto: Any = AutoModelForCausalLM if label is None else AutoModelForSequenceClassification
        config = AutoConfig.from_pretrained(model, local_files_only=True)
        try:
            if any(Path(model).glob("*.safetensors")) or any(Path(model).glob("*.bin")):
                made = auto.from_pretrained(model, local_files_only=True)
            else:
                made = auto.from_config(config)
        except ValueError as error:
            if "Unrecognized configuration class" not in str(error):
                raise
            kind = "causal language model" if label is None else "text classifier"
            raise ValueError(
                f"{model} holds a model of type {config.model_type!r}, which has no {kind}. lab.huggingface takes text "
                "classifiers, and causal language models with label=None; lab.task takes any other model"
            ) from None
        if label is None:
            _check_causal(made, config.model_type)
        return made

    def read() -> Data:
        from transformers import AutoConfig, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        config = AutoConfig.from_pretrained(model, local_files_only=True)
        positions = getattr(config, "max_position_embeddings", None) or length  # GPT-2 and others map their own name
        most = min(length, positions, tokenizer.model_max_length)
        splits = _splits(Path(data))
        if label is not None and all(row.get(label) == HIDDEN for row in splits.get("test", ())):
            splits.pop("test", None)
        return {split: Encoded(rows, tokenizer, text, label, most) for split, rows in splits.items()}

    if not (Path(model) / "config.json").is_file():  # transformers would take it for a name on the hub
        raise ValueError(f"{model} is not a model folder: there is no config.json. model.save_pretrained writes one")

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        found: Tensor = model(**batch).loss
        return found

    more = {"description": f"{Path(model).name} on {Path(data).name}", **more}
    if label is not None:
        more.setdefault("score", _accuracy)
    return task(name, model=make, data=read, loss=loss, **more)


def _check_causal(model: Any, kind: str) -> None:
    """Raise an error for a model that sees the token that it must predict, such as BERT: its loss would be meaningless.

    Only the last output may depend on the last of four tokens; the derivatives of all others must be exactly 0.
    """
    training, embedded = model.training, []
    hook = model.get_input_embeddings().register_forward_hook(lambda module, given, out: embedded.append(out))
    logits = model.eval()(input_ids=arange(4)[None]).logits
    hook.remove()
    model.train(training)
    if grad(logits[:, :-1].square().sum(), embedded[0])[0][:, -1].any():
        raise ValueError(
            f"The model of type {kind!r} sees later tokens, so it is not a causal language model. A decoder of this "
            "type has is_decoder in its config"
        )


def _accuracy(model: Any, batch: dict[str, Tensor]) -> Tensor:
    logits: Tensor = model(**batch).logits
    return (logits.argmax(1) == batch["labels"]).float().mean()


class Encoded(Dataset[dict[str, Tensor]]):
    """Examples as token numbers, as long as the longest of them."""

    def __init__(self, rows: list[dict[str, Any]], tokenizer: Any, text: str, label: str | None, length: int) -> None:
        for key in (text, label):
            if rows and key is not None and key not in rows[0]:
                raise ValueError(f"The examples have no column {key!r}: they have {', '.join(rows[0])}")
        texts = [row[text] for row in rows]
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token  # masked, so which token it is plays no part
        padded = {"padding": "longest", "padding_side": "right"}
        found = tokenizer(texts, **padded, truncation=True, max_length=length, return_tensors="pt")
        if label is not None:
            self.columns = {**found, "labels": tensor([_class(row[label], label) for row in rows])}
            return
        there = found["attention_mask"]
        found["labels"] = found["input_ids"].masked_fill(there == 0, IGNORED)
        self.columns = {name: column[there.sum(1) >= 2] for name, column in found.items()}

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {name: column[i] for name, column in self.columns.items()}


def _class(value: Any, column: str) -> int:
    if isinstance(value, str) or value != int(value) or value < 0:
        raise ValueError(f"The column {column!r} holds {value!r}: expected the number of a class, 0, 1, …")
    return int(value)


def _splits(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for split, names in FILES.items():
        for path in (p for n in names if (p := folder / f"{n}.jsonl").is_file()):
            found[split] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if found:
        return found
    if not any((folder / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
        raise ValueError(f"{folder} has no examples: expected train.jsonl and so on, or what save_to_disk wrote")
    try:
        from datasets import load_from_disk  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise ValueError(f"{folder} needs the package datasets: pip install datasets, or write .jsonl files") from None
    stored = load_from_disk(str(folder)).with_format(None)
    if not isinstance(stored, dict):  # one dataset, not several by name
        return {"train": stored.to_list()}
    found = {split: stored[n].to_list() for split, names in FILES.items() for n in names if n in stored}
    if "train" not in found:
        raise ValueError(f"{folder} has no split 'train': it has {', '.join(stored)}")
    return found
