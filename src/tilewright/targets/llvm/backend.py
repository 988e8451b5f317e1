"""LLVM itself: text to a module, the passes that it needs, and code of a machine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from tilewright.base.errors import CompileError

RUNS: Final = 64  # of a pass builder
# What generated text needs: locals in registers, and simpler arithmetic and branches.
CHEAP = ("sroa", "instruction_combine", "simplify_cfg")


@cache
def target_machine(triple: str, cpu: str, features: str, level: int) -> Any:
    """LLVM's target machine, made once for each level (0 to 3). Raises as `new_machine`."""
    return new_machine(triple, cpu, features, level)


def new_machine(triple: str, cpu: str, features: str, level: int) -> Any:
    """An unshared LLVM target machine.

    Raises CompileError if this LLVM lacks the target.
    """
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError as e:
        raise CompileError(f"LLVM has no target {triple}: {e}", code="TW-LLVM") from e
    # Targets without a dynamic loader need no position-independent code.
    fixed = triple.startswith("wasm") or "-none-" in triple
    return target.create_target_machine(
        cpu=cpu,
        features=features,
        opt=level,
        reloc="static" if fixed else "pic",
        codemodel="small",
    )


@contextmanager
def commented(target: Any, wanted: bool = True) -> Iterator[None]:
    """While it lasts, assembler text has LLVM's comments: names of blocks, loops around them."""
    target.set_asm_verbosity(wanted)
    try:
        yield
    finally:
        target.set_asm_verbosity(False)


class PassRunner:
    """Passes, made once, and what runs them.

    Each run leaves callbacks in the builder, which all later passes call: after 2,000 runs of 30
    passes on one function, a run took six times as long. So it is renewed after RUNS runs; not for
    each, since llvmlite does not free all of it (1.4 KB).
    """

    def __init__(self, target: Any, names: Sequence[str]) -> None:
        import llvmlite.binding as llvm

        self._target: Final = target
        self._options: Final = llvm.create_pipeline_tuning_options(speed_level=2)
        self._passes: Final = llvm.create_new_module_pass_manager()
        for name in names:
            getattr(self._passes, f"add_{name}_pass")()
        self._builder: Any = None
        self._left = 0

    def run(self, module: Any) -> None:
        """Rewrite a module."""
        import llvmlite.binding as llvm

        if (
            self._left <= 0
        ):  # a builder that another thread still uses is freed after that
            self._builder = llvm.create_pass_builder(self._target, self._options)
            self._left = RUNS
        self._left -= 1
        self._passes.run(module, self._builder)


@cache
def pipeline(target: Any, names: Sequence[str] = CHEAP) -> PassRunner:
    """What runs passes for a target machine, made once."""
    return PassRunner(target, names)


def module_of(text: str, target: Any, where: str) -> Any:
    """LLVM assembly as a module for the target.

    Raises CompileError naming `where` if LLVM rejects the text.
    """
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(text)
        module.triple = target.triple
        module.data_layout = str(target.target_data)
        module.verify()
    except RuntimeError as e:
        raise CompileError(f"LLVM rejects the generated code: {e}", where=where) from e
    return module


def optimized(text: str, target: Any, where: str, names: Sequence[str] = CHEAP) -> Any:
    """As `module_of`, after LLVM's passes."""
    module = module_of(text, target, where)
    pipeline(target, names).run(module)
    return module


def translate_only(module: Any, mark: str) -> None:
    """Have the code generator translate functions with the attribute `mark` one instruction at a
    time, in a fifth of the time.

    Done after the passes, which report each function that they skip.
    """
    for function in module.functions:
        if any(mark.encode() in held for held in function.attributes):
            function.add_function_attribute("noinline")
            function.add_function_attribute("optnone")


def parsed(text: str) -> Any:
    """A module that LLVM has printed."""
    import llvmlite.binding as llvm

    return llvm.parse_assembly(text)


def host_features() -> dict[str, bool]:
    """The features of the host processor, by LLVM's names."""
    import llvmlite.binding as llvm

    return dict(llvm.get_host_cpu_features())


def link_in(whole: Any, part: Any, where: str) -> None:
    """Link a module into another, which then has the definitions of both.

    Raises CompileError naming `where` if both define a name.
    """
    try:
        whole.link_in(part)
    except RuntimeError as e:
        raise CompileError(f"LLVM cannot link the code: {e}", where=where) from e


def keep_internal(module: Any, exported: Collection[str]) -> None:
    """Make everything that a module defines internal to it, but the functions `exported`."""
    for item in (*module.functions, *module.global_variables):
        if not item.is_declaration and item.name not in exported:
            item.linkage = "internal"
