"""Go, as programs that need no library to run."""

from services.reward_service.languages.language import Language, Runtime, Toolchain

_PACKAGES = (
    *("bufio", "bytes", "container/heap", "container/list", "container/ring", "context", "errors"),
    *("fmt", "io", "log", "math", "math/big", "math/bits", "math/cmplx", "math/rand", "os"),
    *("regexp", "sort", "strconv", "strings", "sync", "sync/atomic", "time", "unicode"),
    *("unicode/utf8", "unsafe"),
)
_IMPORTS = "\n".join(f'\t_ "{name}"' for name in _PACKAGES)
_HEADER = f"package main\n\nimport (\n{_IMPORTS}\n)\n\nfunc main() {{}}\n"
"""Imports what answers import, so that it is compiled once: it takes ten CPU-seconds."""

LANGUAGES = (
    Language(
        name="go",
        tags=("go", "golang"),
        toolchain=Toolchain(
            compiler="go",
            package="golang-go",
            version=("version",),
            source_file="main.go",
            flags=("build", "-trimpath", "-ldflags=-s -w", "-o", "program", "main.go"),
            environment=(
                *(("GOROOT", "{home}"), ("GOCACHE", "{folder}/cache"), ("GOPATH", "/nowhere")),
                *(("GO111MODULE", "off"), ("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local")),
                *(("GOTELEMETRY", "off"), ("GOENV", "off"), ("GOMAXPROCS", "2")),
            ),
            calls=("in a tree", "in an event loop", "with locks"),
            header=_HEADER,
            header_file="main.go",
            header_flags=("build", "-trimpath", "-o", "program", "main.go"),
            header_output="cache.zip",
            packed="cache",
        ),
        sample='package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("ok") }\n',
        runtime=Runtime(
            environment=(("GOMAXPROCS", "1"), ("GOMEMLIMIT", "{memory_mb}MiB")),
            reserved_mb=2048,
            own_mb=64,
            calls=("in an event loop",),
        ),
        suffixes=(".go",),
        out_of_memory=("out of memory", "cannot allocate memory"),
    ),
)
