"""In which thread or process a piece runs, and what the main thread does meanwhile."""

from __future__ import annotations

from corpus.generator.filling import fill

IMPORTS = {
    "main": (),
    "pool": ("concurrent.futures.ThreadPoolExecutor",),
    "thread": ("threading",),
    "asyncio": ("asyncio",),
    "process": ("multiprocessing",),
}
SOURCES = {
    "pool": """
        def $through(affected):
            with ThreadPoolExecutor(max_workers=3) as executor:
                tasks = [executor.submit($inner, affected and number == 1) for number in range(3)]
                return [task.result() for task in tasks]
    """,
    "thread": """
        def $through(affected):
            helper = threading.Thread(target=$inner, args=(affected,), name="$word")
            helper.start()
            helper.join()
    """,
    "asyncio": """
        async def ${through}_async(affected):
            return await asyncio.gather(
                asyncio.to_thread($inner, affected), asyncio.to_thread($inner, False)
            )


        def $through(affected):
            return asyncio.run(${through}_async(affected))
    """,
    "process": """
        def $through(affected):
            helper = multiprocessing.get_context("fork").Process(target=$inner, args=(affected,))
            helper.start()
            helper.join()
    """,
}


def run_in(thread: str, inner: str, through: str, word: str) -> str:
    """Write a function ``through`` that has ``inner`` run in such a thread and waits for it."""
    return fill(SOURCES[thread], inner=inner, through=through, word=word)
