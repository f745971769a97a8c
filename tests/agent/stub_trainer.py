"""A trainer that keeps the contract and trains nothing. What it does is planned in `settings["plan"]`."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path


def safetensors(values, *, dtype="F32", shape=None):
    """The bytes of a file with one LoRA A and one LoRA B."""
    code = {"F32": "f", "F64": "d", "F16": "e"}[dtype]
    data = struct.pack(f"<{len(values)}{code}", *map(float, values))
    shape = shape or [len(values)]
    header, at = {}, 0
    for name in ("lora_A", "lora_B"):
        header[f"model.{name}.weight"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data * 2


def write_weights(folder, step, values=None, pause=0.0):
    """Everything a checkpoint has, file by file."""
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(safetensors(values or [step + 0.5, 1.0, -1.0]))
    time.sleep(pause)
    (folder / "adapter_config.json").write_text('{"r": 1}')
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("data.pkl", f"{name} at {step} ".encode() * 50)
        time.sleep(pause)


def vouch(folder, record, step, max_steps, **more):
    sizes = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
    part = record.with_suffix(".draft")
    part.write_text(
        json.dumps({"step": step, "max_steps": max_steps, "files": sizes, "loss": 1.0 / max(step, 1), **more})
    )
    part.replace(record)


class Trainer:
    def __init__(self, config):
        self.config = config
        self.plan = config["settings"]["plan"]
        self.stop = False
        self.first_start = config["events_path"].endswith("events-1.jsonl")

    def say(self, event, **fields):
        with Path(self.config["events_path"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "at": time.time(), **fields}) + "\n")

    def due(self, key, step):
        """Planned at this step; a plain number happens in the first start only, a list in every one."""
        at = self.plan.get(key)
        return step in at if isinstance(at, list) else at == step and self.first_start

    def save(self, step, steps):
        folder = Path(self.config["snapshots_dir"]) / str(step)
        if folder.exists():
            return
        self.say("phase", name="saving")
        write_weights(folder, step, self.plan.get("weights", {}).get(str(step)), self.plan.get("save_pause", 0.0))
        state = {"global_step": step, "best_model_checkpoint": self.plan.get("best")}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        for name in self.plan.get("forget", []):
            (folder / name).unlink()
        vouch(folder, folder.with_name(f"{step}.json"), step, steps, metrics={"seen": step})
        self.say("checkpoint", step=step)
        self.say("phase", name="training")

    def run(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN if self.plan.get("ignore_term") else self.asked)
        import faulthandler

        faulthandler.register(signal.SIGUSR1)
        plan, steps = self.plan, self.plan.get("steps", 5)
        print("hello", os.getpid(), os.environ.get("CANARY", ""), flush=True)
        if plan.get("worker"):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        resume = self.config["resume_from"]
        step = json.loads((Path(resume) / "trainer_state.json").read_bytes())["global_step"] if resume else 0
        if plan.get("die_before_start"):
            sys.exit(plan["die_before_start"])
        self.say("start", max_steps=steps, versions={"stub": "1"}, tokens_per_step=10)
        self.say("pid", pid=os.getpid(), resumed=step, micro=self.config["micro_batch_size"])
        self.say("phase", name="training")
        while step < steps:
            step += 1
            time.sleep(plan.get("step_s", 0.02))
            if plan.get("oom_above", 10**9) < self.config["micro_batch_size"] and step == plan.get("oom_at", 1):
                self.say("oom", text=f"CUDA out of memory. Tried to allocate 2 GiB {plan.get('oom_says', '')}")
                return 76
            self.say("step", step=step)
            losses = {**plan.get("losses", {}), **(plan.get("first_losses", {}) if self.first_start else {})}
            loss = losses.get(str(step), 1.0 / step)
            self.say("log", step=step, loss=loss, grad_norm=plan.get("norm", 1.0), learning_rate=1e-4, tokens=10 * step)
            if (
                step % plan.get("save_every", 10**9) == 0
                or step in plan.get("save_at", [])
                or self.due("save_once", step)
            ):
                self.save(step, steps)
            if self.due("flood_at", step):
                print(("flood of words " * 400 + "\n") * 5000, flush=True)
            if self.due("print_at", step):
                print(plan["print"], file=sys.stderr, flush=True)
            if self.due("exit_at", step):
                return plan["code"]
            if self.due("kill_at", step):
                os.kill(os.getpid(), signal.SIGKILL)
            while self.due("hang_at", step):
                time.sleep(0.05)
            if self.stop:
                self.save(step, steps)
                return 75
        return self.finish(step, steps)

    def finish(self, step, steps):
        self.say("phase", name="finishing")
        final = Path(self.config["final_dir"])
        write_weights(final, step, self.plan.get("final"), self.plan.get("finish_pause", 0.0))
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            (final / name).unlink()
        vouch(final, Path(f"{final}.json"), step, steps, versions={"stub": "1"})
        self.say("done", step=step, max_steps=steps)
        return 0

    def asked(self, _number, _frame):
        self.stop = True


if __name__ == "__main__":
    sys.exit(Trainer(json.loads(Path(sys.argv[-1]).read_bytes())).run())
