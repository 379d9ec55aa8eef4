"""Tasks of loaders, of a Lightning module, of Hugging Face's folders."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import superadam_lab as lab
from superadam_lab import tasks
from superadam_lab.comparison.worker import Light
from superadam_lab.runs.folders import Config
from superadam_lab.tasks.supervised import Supervised

x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


@pytest.fixture(autouse=True)
def _tasks():
    kept = dict(tasks.TASKS)
    yield
    tasks.TASKS.clear()
    tasks.TASKS.update(kept)


class Pairs(Dataset):
    def __init__(self, rows):
        self.x, self.y = x[rows], y[rows]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def loss(model, x, y):
    return (model(x) - y).square().mean()


def measured(name):
    run = Light(Config(name, "adamw", options={"lr": 0.05}, budget_evals=24))
    assert run.train() == "finished"
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.folder.rows]


def plain(name="tensors", **data):
    parts = data or {"train": (x[:60], y[:60]), "valid": (x[60:], y[60:])}
    lab.task(name, model=lambda: nn.Linear(3, 1), data=parts, loss=loss, batch=10, epochs=4)
    return measured(name)


def test_a_loader_and_a_dataset_are_what_their_tensors_are():
    train, valid = Pairs(slice(60)), Pairs(slice(60, None))
    loaders = plain("loaders", train=DataLoader(train, batch_size=7, shuffle=True), valid=DataLoader(valid))
    assert loaders == plain("datasets", train=train, valid=valid) == plain()
    assert loaders[-1]["valid_loss"] < 0.5 * loaders[0]["valid_loss"]


def test_the_collate_of_a_loader_is_used_and_a_batch_may_be_a_dict():
    def put_together(rows):
        return {"x": torch.stack([x for x, _ in rows]), "y": torch.stack([y for _, y in rows])}

    loader = DataLoader(Pairs(slice(60)), collate_fn=put_together)
    data = {"train": loader, "valid": DataLoader(Pairs(slice(60, None)), collate_fn=put_together)}
    lab.task("dicts", model=lambda: nn.Linear(3, 1), data=data, loss=lambda m, b: loss(m, b["x"], b["y"]), batch=10)
    assert measured("dicts") == plain()


def test_examples_without_a_length_are_refused():
    class Endless(IterableDataset):
        def __iter__(self):
            yield x[0], y[0]

    with pytest.raises(ValueError, match="Endless has no length"):
        plain("endless", train=Endless())


def lightning_module():
    from lightning import LightningModule

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Linear(3, 1).parameters()

        def training_step(self, batch, index):
            x, y = batch
            loss = (x @ self.weight.T + self.bias - y).square().mean()
            self.log("loss", loss)
            return {"loss": loss} if index else loss

        def configure_optimizers(self):
            raise AssertionError("it is the optimizer that is compared")

    return Module


@pytest.mark.filterwarnings("ignore")  # of lightning's import
def test_a_lightning_module_is_what_its_training_step_is():
    Module = lightning_module()
    data = {"train": DataLoader(Pairs(slice(60))), "valid": DataLoader(Pairs(slice(60, None)))}
    task = lab.lightning("module", Module, data, batch=10, epochs=4)
    assert task.workload("laptop", 0).dimensions() == {"parameters": 4, "training examples": 60, "batch": 10}
    found, expected = measured("module"), plain()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["valid_loss"] == pytest.approx(theirs["valid_loss"], rel=1e-5)


@pytest.fixture
def model(tmp_path):
    """A folder with a tiny classifier's config and its tokenizer."""
    from transformers import BertConfig, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a"]
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertConfig(vocab_size=len(words), **small).save_pretrained(folder)
    return folder


def films(n):
    return [{"text": f"a {word} film", "label": int(word == "good")} for word in ("good", "bad") * n]


def written(folder, **splits):
    folder.mkdir()
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_folders_of_a_model_and_of_examples_are_a_task(tmp_path, model):
    hidden = [{**row, "label": -1} for row in films(3)]
    data = written(tmp_path / "films", train=films(40), validation=films(20), test=hidden)
    task = lab.huggingface("films", model, data, length=6, batch=16)
    workload = task.workload("laptop", 0)
    assert workload.splits == ("train", "valid")
    parameters = sum(p.numel() for p in workload.model.parameters())
    assert workload.dimensions() == {"parameters": parameters, "training examples": 80, "batch": 16}
    run = Light(Config("films", "adamw", options={"lr": 0.02}, budget_evals=60, decay="cosine"))
    assert run.train() == "finished"
    assert run.folder.rows[-1]["valid_score"] == 1.0
    with pytest.raises(ValueError, match="no column 'review': they have text, label"):
        lab.huggingface("other", model, data, text="review").workload("laptop", 0)
    with pytest.raises(ValueError, match=r"has no examples: expected train\.jsonl"):
        lab.huggingface("none", model, model).workload("laptop", 0)
    with pytest.raises(ValueError, match=r"nowhere is not a model folder: there is no config\.json"):
        lab.huggingface("none", tmp_path / "nowhere", data)


def config(folder, **more):
    """A folder with the tokenizer of `model` and another config."""
    (folder / "config.json").write_text(json.dumps(more))
    return folder


SMALL = {"vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}


@pytest.mark.filterwarnings("ignore")
def test_without_a_label_it_is_a_causal_language_model(tmp_path, model):
    """After "a" comes good or bad, each in half of them; the other three tokens are certain: the loss is log 2 / 4."""
    data = written(tmp_path / "films", train=[*films(40), {"text": ""}], validation=films(20))
    config(model, model_type="gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SMALL)
    task = lab.huggingface("next", model, data, label=None, length=6, batch=16)
    workload = task.workload("laptop", 0)
    assert workload.dimensions()["training examples"] == 81  # the empty one has [CLS] and [SEP]
    batch = next(iter(workload.batches(0)))
    padded = batch["attention_mask"] == 0
    assert padded.any()
    assert torch.equal(batch["labels"], batch["input_ids"].masked_fill(padded, -100))
    run = Light(Config("next", "adamw", options={"lr": 0.03}, budget_evals=150, decay="cosine"))
    assert run.train() == "finished"
    assert run.folder.rows[-1]["valid_loss"] == pytest.approx(math.log(2) / 4, rel=0.15)
    assert "valid_score" not in run.folder.rows[-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("words", "tokens"), [(3, 5), (30, 16)])
def test_texts_are_as_long_as_the_longest_and_no_longer_than_the_model_takes(tmp_path, model, words, tokens):
    data = written(tmp_path / "films", train=[{"text": "a"}, {"text": " ".join(["a"] * words)}])
    config(model, model_type="gpt2", **SMALL)
    workload = lab.huggingface("long", model, data, label=None).workload("laptop", 0)
    batch = next(iter(workload.batches(0)))
    assert batch["input_ids"].shape == (2, tokens)
    assert workload.loss(batch)[0].isfinite()


@pytest.mark.filterwarnings("ignore")
def test_other_models_are_refused_by_name(tmp_path, model):
    data = written(tmp_path / "films", train=films(4))
    with pytest.raises(ValueError, match="'bert' sees later tokens, so it is not a causal language model"):
        lab.huggingface("masked", model, data, label=None).workload("laptop", 0)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config(model, model_type="vit", **small)
    for label, kind in (("label", "text classifier"), (None, "causal language model")):
        with pytest.raises(ValueError, match=f"holds a model of type 'vit', which has no {kind}"):
            lab.huggingface("image", model, data, label=label).workload("laptop", 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("label", ["good", 3.8, -1])
def test_a_label_that_is_no_class_is_refused(tmp_path, model, label):
    data = written(tmp_path / "films", train=[*films(2), {"text": "a film", "label": label}])
    with pytest.raises(ValueError, match=rf"The column 'label' holds {label!r}: expected the number of a class"):
        lab.huggingface("films", model, data).workload("laptop", 0)


@pytest.mark.slow  # imports of datasets, and of a worker
@pytest.mark.filterwarnings("ignore")
def test_what_hugging_face_saves_is_compared_with_its_weights_and_with_its_splits(tmp_path, model):
    datasets = pytest.importorskip("datasets")
    from transformers import AutoConfig, AutoModelForSequenceClassification

    made = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(model))
    made.save_pretrained(model)
    rows = {"train": films(40), "validation": films(20), "test": films(5)}
    plain = written(tmp_path / "plain", **rows)
    splits = {split: datasets.Dataset.from_list(found) for split, found in rows.items()}
    several = datasets.DatasetDict(splits).cast_column("label", datasets.ClassLabel(names=["bad", "good"]))
    several.with_format("torch").save_to_disk(tmp_path / "several")
    splits["train"].save_to_disk(tmp_path / "one")

    tasks_ = {name: lab.huggingface(name, model, tmp_path / name, length=6, batch=16) for name in ("several", "one")}
    lab.huggingface("plain", model, plain, length=6, batch=16)
    workload = tasks_["several"].workload("laptop", 0)
    assert workload.splits == ("train", "valid", "test")
    assert workload.model.training  # from_pretrained has switched dropout off
    for mine, saved in zip(workload.model.parameters(), made.parameters(), strict=True):
        assert torch.equal(mine, saved)
    assert measured("several") == measured("plain")
    assert tasks_["one"].workload("laptop", 0).splits == ("train",)

    file = tmp_path / "task.py"
    file.write_text(f"""
import superadam_lab as lab
lab.huggingface("films", {str(model)!r}, {str(tmp_path / "several")!r}, length=6, batch=16, epochs=4)
""")
    few = {"trials": 2, "seeds": 2, "jobs": 1, "task_file": file, "out": tmp_path / "out"}
    results = lab.compare(["films"], ["sgd", "torch.optim.AdamW"], **few)
    assert {r.status for r in results.records} == {"finished"}
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.slow  # imports of datasets and of lightning
@pytest.mark.filterwarnings("ignore")
def test_the_snippets_of_the_page_make_tasks_that_train(tmp_path, model, monkeypatch):
    """Those of docs/compare.md that need a model, which the page leaves to the reader."""
    pytest.importorskip("datasets")
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    page = (Path(__file__).parents[3] / "docs" / "compare.md").read_text()
    declared, folders = re.findall(r"^```py\n(.*?)^```", page, flags=re.M | re.S)
    monkeypatch.chdir(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(model)
    exec(
        folders,
        {
            "model": AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(model)),
            "tokenizer": tokenizer,
        },
    )
    tokenizer.save_pretrained("folders/tiny-gpt")
    config(Path("folders/tiny-gpt"), model_type="gpt2", **{**SMALL, "n_positions": 128})
    loaders = {"train_loader": DataLoader(Pairs(slice(60))), "valid_loader": DataLoader(Pairs(slice(60, None)))}
    exec(declared, {"lab": lab, "MyModule": lightning_module(), **loaders})
    for name in ("mine", "reviews", "next-token"):
        first, *_, last = measured(name)
        assert last["valid_loss"] < first["valid_loss"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dataset_of_hugging_face_is_a_split():
    datasets = pytest.importorskip("datasets")
    parts = {"train": slice(60), "valid": slice(60, None)}
    data = {
        split: datasets.Dataset.from_dict({"x": x[rows].tolist(), "y": y[rows].tolist()}).with_format("torch")
        for split, rows in parts.items()
    }
    lab.task("hub", model=lambda: nn.Linear(3, 1), data=data, loss=lambda m, b: loss(m, b["x"], b["y"]), batch=10)
    assert measured("hub") == plain()


def test_a_large_training_set_is_measured_in_part():
    """Evenly, and as much of it as of the validation set, but at least 1,000 rows; the full gradient takes all."""
    x = torch.arange(5000.0).view(-1, 1)

    def rows(train, valid):
        seen = []
        data = {"train": (x[:train],), "valid": (x[:valid],)}
        work = Supervised(nn.Linear(1, 1), data, lambda model, x: seen.append(len(x)) or x.mean(), None, 0, 10)
        found = work.evaluate("train")["loss"]
        measured, _ = sum(seen), seen.clear()
        full = float(sum(work.full()))
        return measured, found, sum(seen), full

    assert rows(5000, 500) == (1000, pytest.approx(2499.5, abs=0.6), 5000, pytest.approx(2499.5))
    assert rows(5000, 2000)[0] == 2000
    assert rows(900, 10)[0] == 900
