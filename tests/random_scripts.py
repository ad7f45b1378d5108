"""Random shell scripts that mean one thing only, for `tests.differential`.

Whatever two processes of a script do at the same time is ordered by `wait`, a pipe or a file, and nothing prints a pid or a time.
"""

from __future__ import annotations

import random
import shlex

SIZES = (0, 1, 2, 511, 4095, 4096, 4097, 16384, 65535, 65536, 65537, 70000, 131072, 262145)
SIGNALS = ("HUP", "INT", "QUIT", "ILL", "ABRT", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM")
UNTOLD = "2>/dev/null"
"""Around what a signal ends: bash tells of it with the pid."""


class Writer:
    """A random shell script, statement by statement. `bash` says whether more than POSIX may be used."""

    def __init__(self, rng: random.Random, bash: bool) -> None:
        self.rng, self.bash, self.names = rng, bash, 0

    def name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def word(self) -> str:
        return "".join(self.rng.choices("abcxyz019_.%", k=self.rng.randint(1, 9)))

    def block(self, depth: int, least: int = 1, most: int = 4) -> str:
        return "\n".join(self.statement(depth) for _ in range(self.rng.randint(least, most)))

    def statement(self, depth: int) -> str:
        leaves = (self.echo, self.odd_bytes, self.flood, self.code, self.to_file, self.input, self.variable)
        if depth <= 0:
            return self.rng.choice(leaves)()
        nests = (
            self.subshell, self.braces, self.pipe, self.substitution, self.loop, self.branch, self.function, self.background,
            self.heredoc, self.descriptors, self.trap, self.child_signal, self.nested_shell,
        )  # fmt: skip
        if self.rng.random() < 0.4:
            return self.rng.choice(leaves)()
        return self.rng.choice(nests)(depth - 1)

    def echo(self) -> str:
        text = f"echo {shlex.quote(self.word())}"
        return text + self.rng.choice(
            ("", "", " >&2", " 2>&1", " >/dev/null", " >/dev/stderr", " >/proc/self/fd/1")
        )

    def odd_bytes(self) -> str:
        octal = "".join(f"\\{self.rng.randrange(256):03o}" for _ in range(self.rng.randint(1, 12)))
        return f"printf '{octal}'" + self.rng.choice(("", " >&2"))

    def flood(self) -> str:
        size, letter = self.rng.choice(SIZES), self.rng.choice("defgh")
        return f"head -c {size} /dev/zero | tr '\\0' {letter}" + self.rng.choice(("", " >&2"))

    def code(self) -> str:
        number = self.rng.randrange(256)
        return self.rng.choice(
            (f"(exit {number}); echo $?", f"sh -c 'exit {number}'; echo $? >&2", "false; echo $?", "! true; echo $?",
             f"true && (exit {number}) || echo no:$?", "nosuchcommand_; echo $?", "/etc/passwd; echo $?", "/; echo $?")
        )  # fmt: skip

    def to_file(self) -> str:
        name = self.name()
        how = self.rng.choice((f"> {name}", f">> {name}", f"2> {name} >&2", f"> {name} 2>&1"))
        return f"echo {self.word()} {how}; cat {name}"

    def input(self) -> str:
        return self.rng.choice(
            ("read -r line; echo \"[$line]$?\"", "cat", "wc -c", "head -c 7 | od -c", "cat <&0", "cat - </dev/null; echo $?",
             "dd bs=1 count=3 2>/dev/null", "while read -r l; do echo \"<$l>\"; done")
        )  # fmt: skip

    def variable(self) -> str:
        name = self.name()
        return f'{name}={self.word()}; export {name}; echo "${{{name}}}" "${{#{name}}}" "${{{name}:-x}}" $(({self.rng.randrange(99)}*7))'

    def subshell(self, depth: int) -> str:
        return f"(\n{self.block(depth)}\n)" + self.rng.choice(
            ("", " 2>&1", " >&2", " </dev/null", " 2>/dev/null")
        )

    def braces(self, depth: int) -> str:
        how = self.rng.choice(("", " 2>&1", " >&2", " <&-", " 2>&-"))
        return "{\n" + self.block(0 if how.endswith("-") else depth) + "\n}" + how

    def pipe(self, depth: int) -> str:
        sink = self.rng.choice(
            ("cat", "tr a-z A-Z", "wc -c", "cksum", "tail -c 9", "sort", "cat | cat", "od -c | tail -n 3")
        )
        # Where both streams are one, what goes through the sink and what does not would race.
        errors = self.name()
        return f"{{\n{self.block(depth)}\n}} 2>{errors} | {sink}; cat {errors} >&2"

    def substitution(self, depth: int) -> str:
        inner = self.block(depth, 1, 2)
        # A NUL in a substitution makes bash warn: od keeps the bytes out of it.
        return f'x=$(\n(\n{inner}\n) | od -An -c | tail -n 2\n); echo "$? ${{#x}}"'

    def loop(self, depth: int) -> str:
        variable = self.name()
        body = self.statement(min(depth, 1))
        return f"for {variable} in 1 2 3; do\n{body}\n[ ${variable} = 2 ] && {self.rng.choice(('break', 'continue', ':'))}\ndone"

    def branch(self, depth: int) -> str:
        test = self.rng.choice(
            ("true", "false", "[ -e /etc/passwd ]", "[ a = b ]", "cat </dev/null", "test -t 0")
        )
        return f"if {test}; then\n{self.block(depth, 1, 2)}\nelse\n{self.block(depth, 1, 2)}\nfi"

    def function(self, depth: int) -> str:
        name = self.name()
        return f'{name}() {{\n{self.block(depth, 1, 2)}\nreturn {self.rng.randrange(256)}\n}}\n{name} a "b c"; echo $?'

    def background(self, depth: int) -> str:
        name = self.name()
        start = self.rng.choice(("", "nohup ", "setsid ", "nice ", "env -i "))
        if start:
            program = "/bin/echo" if start == "env -i " else "echo"
            return f"{start}{program} {self.word()} & wait $!; echo $?"
        return f"(\n{self.block(depth, 1, 2)}\nexit {self.rng.randrange(256)}\n) >{name} 2>&1 & wait $!; echo $?; cat {name}"

    def heredoc(self, depth: int) -> str:
        mark = self.rng.choice(("EOF", "'EOF'", "\\EOF"))
        body = "\n".join(
            self.rng.choice(("$HOME `echo q`", "a  b", '\\$x \\\\ "', "", "$((1+2))")) for _ in range(3)
        )
        return f"{self.rng.choice(('cat', 'cat >&2', 'wc -c', 'cat -n | tail -n 2'))} <<{mark}\n{body}\nEOF"

    def descriptors(self, depth: int) -> str:
        inner, name = self.block(depth, 1, 2), self.name()
        leaf = self.block(
            0, 1, 3
        )  # a pipe that gets the number of a closed descriptor can make a plain shell hang
        return self.rng.choice(
            (f"{{\nexec 3>&1 1>&2 2>&3 3>&-\n{inner}\n}}", f"(\nexec >&-\n{leaf}\n)", f"(\nexec 2>&-\n{leaf}\n)", f"(\nexec <&-\n{leaf}\n)",
             f"(\nexec >{name} 2>&1\n{inner}\n); cat {name}", f"{{\n{inner}\n}} 5>&1 >&2 2>&5", f"(\nexec 0</dev/null 1>&2\n{inner}\n)",
             f"(\nexec 7>&1 >/dev/null\n{inner}\necho seven >&7\n)", "ls /proc/self/fd", f"exec 4<&0\n{inner}\nexec 4<&-")
        )  # fmt: skip

    def trap(self, depth: int) -> str:
        signal = self.rng.choice(("TERM", "USR1", "INT", "HUP"))
        # $$ in a nested shell, because a subshell's own pid is known to bash alone.
        inner = self.rng.choice(
            (f"trap 'echo got' {signal}; kill -{signal} $$; echo after", f"trap '' {signal}; kill -{signal} $$; echo ignored",
             f"trap 'echo bye' EXIT; exit {self.rng.randrange(256)}", f"trap 'echo bye; exit 9' {signal}; kill -{signal} $$; echo never",
             "trap 'echo bye >&2' EXIT; kill -KILL $$", "trap 'echo bye' EXIT; exec true", "trap 'echo e' EXIT; (exit 3); false")
        )  # fmt: skip
        return f"{{ {self.rng.choice(('sh', 'bash'))} -c {shlex.quote(inner)}; echo $?; }} {UNTOLD}"

    def child_signal(self, depth: int) -> str:
        return f"{{ sh -c 'kill -{self.rng.choice(SIGNALS)} $$'; echo $?; }} {UNTOLD}"

    def nested_shell(self, depth: int) -> str:
        inner = Writer(self.rng, False).block(min(depth, 1), 1, 2)
        return f"{self.rng.choice(('sh', 'bash'))} -c {shlex.quote(inner)}" + self.rng.choice(
            ("", "; echo $?", " </dev/null")
        )
