"""Hugging Face's Trainer: τ = 0 with the Trainer as it is, τ = 1 with `TwoPoint`; stopped in an epoch and resumed.

pip install superadam[trainers]; python examples/with_transformers.py    # ten seconds

Prints the losses of a run that was never stopped and of one that was, and that the parameters are the same.
"""

import tempfile

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from superadam import SuperAdam
from superadam.trainers import TwoPoint


class TwoPointTrainer(TwoPoint, Trainer):
    """The Trainer, with two gradients of every batch."""


def data():
    """Sequences that count: 3 4 5 6 …"""
    starts = torch.randint(0, 16, (96, 1), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": ids, "labels": ids} for ids in (starts + torch.arange(12)) % 16]


def train(tau, folder, *, accumulate=1, resume=None, stop=None):
    """Returns the loss of every batch, and the model."""
    transformers.set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=16, n_embd=32, n_layer=1, n_head=2))  # with dropout
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=accumulate,
        num_train_epochs=2,
        logging_steps=1,
        save_steps=8,
        max_grad_norm=0,  # SuperAdam's clip= bounds g_t instead
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
    )
    opt = SuperAdam(model, lr=0.03, tau=tau, schedule="Paper")
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda batch: 0.95**batch)
    trainer = TwoPointTrainer(model=model, args=args, train_dataset=data(), optimizers=(opt, scheduler))
    if stop is not None:
        trainer.add_callback(Stop(stop))
    trainer.train(resume_from_checkpoint=resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model


class Stop(transformers.TrainerCallback):
    """As if the process ended there."""

    def __init__(self, batch):
        self.batch = batch

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.batch


def main(settings=((0.0, 1), (1.0, 1), (1.0, 2))):
    results = {}
    for tau, accumulate in settings:
        with tempfile.TemporaryDirectory() as folder:
            whole, model = train(tau, f"{folder}/whole", accumulate=accumulate)
            train(tau, folder, accumulate=accumulate, stop=9)
            resumed, again = train(tau, folder, accumulate=accumulate, resume=f"{folder}/checkpoint-8")
        same = all(map(torch.equal, model.parameters(), again.parameters()))
        name = f"tau={tau:g}, {accumulate} micro-batches"
        results[name] = {"whole": whole, "resumed": resumed, "same": same}
        print(f"{name}: loss {whole[0]:.4f} to {whole[-1]:.4f}, resumed {resumed[-1]:.4f}, same: {same}")
    return results


if __name__ == "__main__":
    main()
