"""Generated commands for comparing the daemon with plain `subprocess`: the same seed and number always make the same case.

A case means one thing only (see `tests.random_scripts`), so a difference between two runs of it is a difference between the two
ways to run it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.random_scripts import SIGNALS, UNTOLD, Writer

BASE_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nowhere",
    "USER": "u",
    "LOGNAME": "u",
    "LANG": "C",
}
HOLD_SECONDS = 1.5
"""How long a leftover holds the command's pipes: far over what an answer takes on a busy machine."""


@dataclass(frozen=True)
class Case:
    family: str
    command: str | None = None
    argv: tuple[str, ...] | None = None
    shell: str = "/bin/bash"
    stdin: bytes | None = None
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "."
    merge: bool = False
    pad: int = 0
    """The daemon gets the command behind so many bytes on its first line: too long for an argument of `subprocess`."""
    held: bool = False
    """A leftover holds the output for HOLD_SECONDS: `subprocess` waits for it, the daemon must not."""
    late: bytes = b""
    """What the leftover then writes to stdout: `subprocess` counts it as the command's, the daemon keeps it apart."""
    limit: int | None = None
    """`max_output_bytes`: the daemon shows the two halves of it, and says how much is missing between them."""

    @property
    def full_env(self) -> dict[str, str]:
        return {**BASE_ENV, **self.env}


def script(rng: random.Random) -> Case:
    """A random script with a random end, and what is around it."""
    shell = rng.choice(("/bin/bash", "/bin/bash", "/bin/sh"))
    bash = shell == "/bin/bash"
    writer = Writer(rng, bash)
    parts = [
        rng.choice(
            (
                "set -e",
                "set -u",
                "set -f",
                "mkdir sub; cd sub",
                "umask 077",
                "set -o pipefail" if bash else ":",
                "trap 'echo out' EXIT",
            )
        )
    ]
    parts = parts if rng.random() < 0.3 else []
    parts.append(writer.block(3, 1, 5))
    ends = ("", "", f"exit {rng.randrange(256)}", f"kill -{rng.choice(SIGNALS)} $$", "exec false", f"exec sh -c 'exit {rng.randrange(256)}'",
            "exec >&- 2>&-", "exec nosuch_", "printf 'no newline'", "if", "(kill -9 $$)", f"kill -{rng.choice(('TERM', 'KILL'))} 0", "return 3",
            "false")  # fmt: skip
    parts.append(rng.choice(ends))
    stdin = rng.choice(
        (None, None, b"", b"one\ntwo\nthree", rng.randbytes(50), b"line\n" * rng.choice((1, 3000, 20000)))
    )
    return Case(
        "script", "\n".join(parts), shell=shell, stdin=stdin, merge=rng.random() < 0.2,
        pad=140_000 if rng.random() < 0.02 else 0, env=environment(rng) if rng.random() < 0.3 else {},
    )  # fmt: skip


def environment(rng: random.Random) -> dict[str, str]:
    values = (
        "",
        "a=b=c",
        "two\nlines\n",
        "'\"$(touch pwn)`",
        "日本語🤣",
        " lead",
        "tail ",
        "\t",
        "x" * 5000,
        "-n",
        "\\",
    )
    names = ("K", "A_B", "A-B", "1X", "é", "K.K", "_", "BASH_ENV_", "PS4", "IFS_")
    return {rng.choice(names): rng.choice(values) for _ in range(rng.randint(1, 5))}


def environ(rng: random.Random) -> Case:
    program = rng.choice(
        (
            "env | sort",
            "env -0 | sort -z | od -c",
            "printenv K; echo $?",
            'echo "[$K]" "${A_B-unset}"',
            "export -p | sort",
        )
    )
    return Case("environment", program, env=environment(rng), shell=rng.choice(("/bin/bash", "/bin/sh")))


def end(rng: random.Random) -> Case:
    number, signal = rng.randint(0, 400), rng.choice(SIGNALS)
    texts = (f"exit {number}", f"kill -{signal} $$", f"echo a; kill -{signal} $$; echo b", f"trap 'exit {number % 256}' {signal}; kill -{signal} $$; exit 1",
             f"sh -c 'kill -{signal} $$'", f"exec sh -c 'kill -{signal} $$'", f"(kill -{signal} $$); echo still", f"exit {number} extra", "exit abc",
             "(sleep 0.05; kill -CONT $$) & kill -STOP $$; echo resumed; wait", "kill -KILL 0", "trap '' TERM; kill -TERM 0; echo here",
             f"sh -c 'exit {number % 256}' | cat; echo $?", "for", "'unclosed", "$(", "echo ${", "exec /", "exec nosuch_; echo not", "\n\n", "", " ", "#",
             f"set -e; (exit {number % 256}); echo never", "ulimit -c 0; kill -ABRT $$", f"echo a\r\nexit {number % 256}\r")  # fmt: skip
    return Case(
        "end", rng.choice(texts), shell=rng.choice(("/bin/bash", "/bin/sh")), merge=rng.random() < 0.2
    )


def flood(rng: random.Random) -> Case:
    writer = Writer(rng, False)
    text = "\n".join(writer.flood() for _ in range(rng.randint(1, 6))) + rng.choice(
        ("", "\nprintf end", "\nexit 3")
    )
    return Case("flood", text, limit=rng.choice((None, 0, 1, 1000, 65536, 65537)), merge=rng.random() < 0.3)


def stdin(rng: random.Random) -> Case:
    size = rng.choice((0, 1, 1000, 65536, 65537, 200_000, 1_000_000))
    texts = ("cat", "wc -c", "cksum", "head -c 10", "exec <&-; echo closed", "read -r a; read -r b; echo \"$a|$b\"", "tail -c 3", "true", "cat >/dev/null; echo $?",
             "(head -c 5 >/dev/null); wc -c </dev/null", "sleep 0.02; wc -c", "cat >&2", "kill -9 $$", "cat | cat | wc -c", "dd bs=1000 count=2 2>/dev/null | wc -c")  # fmt: skip
    given = (
        None
        if rng.random() < 0.15
        else rng.randbytes(size)
        if rng.random() < 0.5
        else (b"some line\n" * (size // 10 + 1))[:size]
    )
    return Case("stdin", rng.choice(texts), stdin=given, shell=rng.choice(("/bin/bash", "/bin/sh")))


def leftover(rng: random.Random) -> Case:
    sleep = f"sleep {HOLD_SECONDS}"
    late = rng.choice((b"", b"", b"late\n"))
    body = f"{sleep}; printf late\\\\n" if late else sleep
    start = rng.choice((f"({body}) &", f"(({body}) &)", f"setsid sh -c '{body}' &", f"nohup sh -c '{body}' &", f"sh -c '({body}) &'", f"(trap '' TERM HUP; {body}) &",
                        f"env -i /bin/sh -c 'PATH=/bin:/usr/bin; {body}' &", f"(exec 2>&-; {body}) &"))  # fmt: skip
    close = rng.choice((True, False)) and not late
    if close:  # nothing holds the pipes: both ways end at once
        start = (
            f"{{ {start} }} >/dev/null 2>&1 </dev/null"
            if not start.endswith("&")
            else f"{{ {start}\n}} >/dev/null 2>&1 </dev/null"
        )
    tail = rng.choice(
        (
            "echo started",
            "echo started >&2",
            "exit 7",
            "kill -TERM $$",
            "head -c 70000 /dev/zero",
            "exec echo started",
            "printf started",
        )
    )
    return Case("leftover", f"{start}\n{tail}", held=not close, late=late)


def limits(rng: random.Random) -> Case:
    texts = ("ulimit -n", "ulimit -Hn", "ulimit -c", "ulimit -s; ulimit -Hs", "ulimit -u; ulimit -v; ulimit -f; ulimit -t", "ulimit -n 20; ulimit -n; ulimit -Hn",
             f"{{ ulimit -f 1; head -c 100000 /dev/zero > f; echo $?; wc -c < f; }} {UNTOLD}", "ulimit -f 0; echo x > f", "ulimit -n 4; cat /etc/passwd | wc -l", f"{{ ulimit -v 1; ls; echo $?; }} {UNTOLD}",
             "ulimit -l; ulimit -q; ulimit -e; ulimit -r; ulimit -i", "umask; umask 027; (umask)", "umask 0; > f; ls -l f | cut -c1-10", "nice; nice -n 5 nice")  # fmt: skip
    return Case("limits", rng.choice(texts))


def place(rng: random.Random) -> Case:
    name = rng.choice(("a b", "-n", "line\nbreak", "é", "日本", "$(x)", "'q'", "deep/er/est", ".", "x;y&z"))
    texts = ("pwd; /bin/pwd", "cd ..; pwd; cd - ", "cd nowhere; echo $?; pwd", "rm -rf \"$PWD\"; pwd; /bin/pwd; echo $?", "echo *; echo .*", "cd -P .; pwd -P",
             "touch 'new\nfile' .hidden; ls -A", "mkdir d; cd d; rmdir ../d; echo still; ls; pwd", "echo \"$PWD\" \"$OLDPWD\"", "readlink /proc/self/cwd")  # fmt: skip
    return Case("place", rng.choice(texts), cwd=name, shell=rng.choice(("/bin/bash", "/bin/sh")))


def state(rng: random.Random) -> Case:
    texts = ("grep -E '^Sig(Blk|Ign)|^ShdPnd|^NoNewPrivs|^Seccomp:|^Groups|^[UG]id|^Cap' /proc/self/status", "ls /proc/self/fd", "ls -l /proc/self/fd | cut -c1-10 | tail -n +3",
             "test -t 0 || test -t 1 || test -t 2; echo $?", "cat /proc/self/cmdline | od -c", "echo $0 $# $- $SHLVL", "stat -Lc %F /dev/stdin /dev/stdout /dev/stderr", "exec 3</dev/tty",
             "ps -o tty=,nice= -p $$", "[ $(ps -o sid= -p $$) = $$ ] && [ $(ps -o pgid= -p $$) = $$ ]; echo $?", "cat /proc/self/timerslack_ns; cat /proc/self/personality")  # fmt: skip
    return Case("state", rng.choice(texts), stdin=rng.choice((None, b"")), merge=rng.random() < 0.2)


def program(rng: random.Random) -> Case:
    """argv without a shell. What is in `bin1` and so on is made by the runner, the same for both ways."""
    pieces = (
        "",
        " ",
        "a b",
        "*",
        "$HOME",
        "-n",
        "é🤣",
        "line\nbreak",
        "'",
        '"',
        "\\",
        "x" * 131_071,
        "\t",
        "--",
        "a=b",
    )
    words = tuple(rng.choice(pieces) for _ in range(rng.randint(0, 5)))
    search = rng.choice(
        (
            BASE_ENV["PATH"],
            "bin1:bin2:/usr/bin:/bin",
            "/nowhere::/bin",
            "bin2",
            "/etc/passwd:/bin",
            "bin1",
            "",
            "/root/none:/usr/bin:/bin",
        )
    )
    argv = rng.choice(
        (("printf", "[%s]", *words), ("printenv", "PATH", "LANG"), ("/bin/sh", "-c", 'echo "$0" "$#" "$@"; exit 4', *words), ("tool", *words), ("./script", *words), ("bin1/tool",),
         ("nosuch",), ("/nosuch/dir/x",), ("./noexec",), ("./folder",), ("./noshebang",), ("./lost",), ("./loop",), ("cat", "/proc/self/cmdline"), ("false",), ("sh", "-c", "kill -9 $$"),
         ("cat", "script/x"), ("script/x",), ("true", "x" * 131_072))
    )  # fmt: skip
    return Case(
        "program",
        argv=argv,
        env={"PATH": search},
        stdin=rng.choice((None, b"in\n")),
        cwd=rng.choice((".", ".", "nowhere", "script")),
    )


FAMILIES: dict[Callable[[random.Random], Case], int] = {
    script: 52, end: 10, flood: 5, stdin: 8, environ: 4, leftover: 4, limits: 3, place: 4, state: 3, program: 7,
}  # fmt: skip
"""Shares of a hundred."""


def case(seed: int, number: int) -> Case:
    rng = random.Random(f"{seed}/{number}")
    family = rng.choices(list(FAMILIES), list(FAMILIES.values()))[0]
    return family(rng)
