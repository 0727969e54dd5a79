"""JavaScript by Node.js: a CommonJS module that the interpreter reads from a descriptor."""

from pathlib import Path

from services.reward_service.languages.language import Language, Runtime

_BOOT = Path(__file__).with_name("boot.js").read_text(encoding="utf-8")

LANGUAGES = (
    Language(
        name="javascript",
        tags=("javascript", "js", "node", "nodejs"),
        sample="console.log('ok')",
        runtime=Runtime(
            interpreter="node",
            package="nodejs",
            arguments=(
                *("--max-old-space-size={memory_mb}", "--max-semi-space-size=8"),
                *("--stack-size=15000", "--v8-pool-size=1", "-e", _BOOT),
            ),
            environment=(
                *(("UV_THREADPOOL_SIZE", "1"), ("UV_USE_IO_URING", "0")),
                *(("OPENSSL_CONF", "/dev/null"), ("MALLOC_ARENA_MAX", "1")),
            ),
            reserved_mb=768,
            own_mb=96,
            stack_mb=16,
            calls=("in an event loop",),
        ),
        suffixes=(".js", ".cjs"),
        out_of_memory=(
            *("JavaScript heap out of memory", "Array buffer allocation failed"),
            *("process out of memory", "Fatal process out of memory"),
        ),
    ),
)
