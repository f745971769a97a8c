"""The command line: the one place where errors become exit codes."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from orchestrator.cli import invocation
from orchestrator.errors import TerminationUnconfirmed, TuneError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

    from orchestrator.cli.render import Renderer

INTERRUPTED = 130  # 128 + SIGINT
PIPE_CLOSED = 141  # 128 + SIGPIPE: what a program without a handler would have answered

COMMANDS = {  # name -> "module:attribute", in the order of `tune --help`
    "launch": "launch:launch",
    "resume": "resume:resume",
    "stop": "stop:stop",
    "ls": "ls:ls",
    "status": "status:status",
    "logs": "logs:logs",
    "pull": "pull:pull",
    "reconcile": "reconcile:reconcile",
    "sweep": "sweep:sweep",
    "offers": "offers:offers",
    "validate": "validate:validate",
    "init": "init:init",
    "schema": "schema:schema",
    "doctor": "doctor:doctor",
    "providers": "providers:providers",
    "cron": "cron:app",
    "demo": "demo:demo",
    "local": "local:app",
}
HIDDEN = ("local",)
RETRYING = (
    "launch",
    "resume",
    "ls",
    "status",
    "logs",
    "pull",
    "offers",
    "doctor",
)  # those that have no passes of their own


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    code = run(sys.argv[1:])
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """One call of the program. Never raises."""
    from orchestrator.cli.render import PipeClosed, Renderer, discard_output

    render = Renderer(json_mode="--json" in argv)
    try:
        try:
            return _dispatch(argv, render)
        except (BrokenPipeError, PipeClosed):
            discard_output()
            return PIPE_CLOSED
        except KeyboardInterrupt:
            return INTERRUPTED
        except BaseException as e:
            _remember(e)
            return _report(e, render)
    except (BrokenPipeError, PipeClosed):  # while the error was being told
        discard_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(argv: Sequence[str], render: Renderer) -> int:
    rest = invocation.take_common(argv)
    import typer

    command = typer.main.get_command(build(rest[0] if rest else ""))
    try:
        answer = command.main(args=rest, prog_name="tune", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    if rest and rest[0] in RETRYING:
        _try_again()
    render.flush()  # here, where a closed pipe can still be answered
    if render.lost is not None and not answer:
        from orchestrator.storage.oserrors import meaning

        raise meaning(render.lost, doing="write the output")
    return answer if isinstance(answer, int) else 0


def _try_again() -> None:
    """Whatever the command was about: what should have ended is told so again."""
    from orchestrator.cli.session import Session
    from orchestrator.cli.unconfirmed import try_again

    with contextlib.suppress(TuneError):
        try_again(Session())


def _remember(error: BaseException) -> None:
    if isinstance(error, TerminationUnconfirmed):
        from orchestrator.cli.session import Session
        from orchestrator.cli.unconfirmed import remember

        with contextlib.suppress(TuneError):
            remember(Session(), error)


def build(wanted: str = "") -> typer.Typer:
    """The typer application; with only `wanted` in it when that is the exact name of a command."""
    import typer

    from orchestrator.cli.commands._root import root

    app = typer.Typer(
        name="tune",
        rich_markup_mode=None,  # rich would double the time of `tune --help`
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="\b\n" + invocation.EVERYWHERE,
    )
    app.callback()(root)
    for name in [wanted] if wanted in COMMANDS else COMMANDS:
        _add(app, name)
    return app


def _add(app: typer.Typer, name: str) -> None:
    from importlib import import_module

    module_name, _, attribute = COMMANDS[name].partition(":")
    module = import_module(f"orchestrator.cli.commands.{module_name}")
    target = getattr(module, attribute)
    if attribute == "app":
        app.add_typer(target, name=name, hidden=name in HIDDEN, rich_help_panel=None)
        return
    examples = "\n".join(f"  {line}" for line in module.EXAMPLES)
    epilog = f"\b\nExamples:\n{examples}\n\n\b\n{invocation.EVERYWHERE}"
    app.command(name, epilog=epilog, hidden=name in HIDDEN)(target)


def _report(error: BaseException, render: Renderer) -> int:
    """Tell it, and say which exit code it means."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, TuneError):
        render.error(error, error.exit_code, debug=invocation.current().debug)
        return error.exit_code
    usage = _usage(error)
    if usage is not None:
        return usage if isinstance(usage, int) else _report(usage, render)
    render.bug(error)
    return TuneError.exit_code


def _usage(error: BaseException) -> UsageError | int | None:
    """What typer says of a line it cannot read, as our own error; an int when it has only shown help."""
    import typer

    kinds = typer.BadParameter.__mro__  # the base class has moved between typer's versions
    base = next(kind for kind in kinds if kind.__name__ == "ClickException")
    if not isinstance(error, base):
        return None
    anything: Any = error
    if type(error).__name__ == "NoArgsIsHelpError":
        from orchestrator.cli.render import Renderer

        Renderer.current().say(anything.format_message())
        return UsageError.exit_code
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "tune"
    return UsageError(anything.format_message().rstrip(), hint=f"run `{path} --help`")


if __name__ == "__main__":
    main()
