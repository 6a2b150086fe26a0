"""Waits whose end lies within the rank's own process: locks, events, queues, futures, loops."""

from __future__ import annotations

from corpus.generator.piece import Mechanism, Thread

ANY_THREAD: tuple[Thread, ...] = ("main", "pool", "thread", "asyncio", "process")
EVENT = Mechanism(
    name="event_never_set",
    source="""
        def $function(affected):
            $noun = threading.Event()
            if affected:
                mark_onset()
            else:
                $noun.set()
            $noun.wait()
    """,
    imports=("threading",),
    cause=("rank_stalled",),
    threads=ANY_THREAD,
)
QUEUE = Mechanism(
    name="queue_never_filled",
    source="""
        def $function(affected):
            $noun = queue.Queue(maxsize=4)
            if affected:
                mark_onset()
            else:
                $noun.put(1.0)
            return $noun.get()
    """,
    imports=("queue",),
    cause=("rank_stalled",),
    threads=ANY_THREAD,
)
CONDITION = Mechanism(
    name="condition_never_notified",
    source="""
        class ${Noun}Board:
            def __init__(self):
                self.changed = threading.Condition()
                self.values = []

            def $function(self, affected):
                with self.changed:
                    if affected:
                        mark_onset()
                    else:
                        self.values.append(1)
                    self.changed.wait_for(lambda: self.values)


        def $helper(affected):
            ${Noun}Board().$function(affected)
    """,
    imports=("threading",),
    cause=("rank_stalled",),
    threads=ANY_THREAD,
    function=("function", "helper"),
    because="the user's lambda and the function around it take turns at the top of the stack",
)
FUTURE = Mechanism(
    name="future_never_done",
    source="""
        def $function(affected):
            $noun = concurrent.futures.Future()
            if affected:
                mark_onset()
            else:
                $noun.set_result(0)
            return $noun.result()
    """,
    imports=("concurrent.futures",),
    cause=("rank_stalled",),
    threads=("main", "thread", "pool"),
)
CONSUMER = Mechanism(
    name="queue_of_a_dead_producer",
    source="""
        def $helper(items, affected):
            if not affected:
                items.put(torch.zeros(4))


        def $function(affected):
            items = queue.Queue()
            producer = threading.Thread(target=$helper, args=(items, affected), daemon=True)
            producer.start()
            if affected:
                mark_onset()
            return items.get()
    """,
    imports=("queue", "threading"),
    cause=("rank_stalled",),
    threads=("main", "pool", "process"),
)
EVENT_LOOP = Mechanism(
    name="coroutine_never_woken",
    source="""
        async def $helper(affected):
            $noun = asyncio.Event()
            if affected:
                mark_onset()
            else:
                $noun.set()
            await $noun.wait()


        def $function(affected):
            asyncio.run($helper(affected))
    """,
    imports=("asyncio",),
    cause=("rank_stalled",),
    threads=("main", "thread"),
    function=("function", "helper"),
    because="the loop has left the coroutine's frame; the caller's line is what a stack shows",
)
TWO_LOCKS = Mechanism(
    name="locks_in_both_orders",
    source="""
        def $helper(first, second, ready):
            with second:
                ready.set()
                with first:
                    pass


        def $function(affected):
            first, second, ready = threading.Lock(), threading.Lock(), threading.Event()
            if not affected:
                return
            with first:
                threading.Thread(target=$helper, args=(first, second, ready), daemon=True).start()
                ready.wait()
                mark_onset()
                with second:
                    pass
    """,
    imports=("threading",),
    cause=("thread_deadlock",),
)
LOCK_TWICE = Mechanism(
    name="lock_taken_twice",
    source="""
        $noun = threading.Lock()


        def $helper():
            with $noun:
                return 1


        def $function(affected):
            if not affected:
                return $helper()
            with $noun:
                mark_onset()
                return $helper()
    """,
    imports=("threading",),
    cause=("thread_deadlock", "rank_stalled"),
    because="a lock within one process, yet nothing outside shows that the waiter itself holds it",
    function=("helper",),
)
POOL_OF_ONE = Mechanism(
    name="task_waits_for_its_own_pool",
    source="""
        pool = ThreadPoolExecutor(max_workers=1)


        def $helper(affected):
            if affected:
                mark_onset()
                return pool.submit(int, 1).result()
            return 1


        def $function(affected):
            return pool.submit($helper, affected).result()
    """,
    imports=("concurrent.futures.ThreadPoolExecutor",),
    cause=("thread_deadlock", "rank_stalled"),
    because="a task waits for a task that needs its own thread, through futures and not locks",
    function=("function", "helper"),
)
SLEEP = Mechanism(
    name="sleeps_for_days",
    source="""
        def $function(affected):
            if affected:
                mark_onset()
            time.sleep(604800 if affected else 0.01)
    """,
    imports=("time",),
    cause=("rank_stalled",),
    threads=ANY_THREAD,
    slow=True,
)
ALL = (
    *(EVENT, QUEUE, CONDITION, FUTURE, CONSUMER, EVENT_LOOP),
    *(TWO_LOCKS, LOCK_TWICE, POOL_OF_ONE, SLEEP),
)
