"""The ends of processes: threads that are in the engine while the interpreter exits, forks, and other interpreters."""

import subprocess
import sys
import textwrap


def run(program):
    return subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)], capture_output=True, text=True,
                          timeout=60)


def test_daemon_threads_in_the_engine_do_not_abort_the_exit():
    program = """
        import threading
        from moesaic import LLM, SamplingParams
        llm = LLM("tiny", device="cpu", threads=1, context=256, max_batch=4)
        works = threading.Semaphore(0)
        def work(call):
            while True:
                call()
                works.release()
        calls = [lambda: llm.generate("Once", SamplingParams(max_tokens=4)), lambda: llm.tokenize("a b c " * 200)]
        for call in calls * 2:
            threading.Thread(target=work, args=(call,), daemon=True).start()
        for _ in range(20):
            works.acquire()
        """
    for _ in range(4):
        done = run(program)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_that_opens_a_model_does_not_abort_the_exit():
    program = """
        import threading
        from moesaic import LLM
        begun = threading.Event()
        def work():
            while True:
                LLM("tiny", device="cpu", threads=1, context=256, max_batch=4, progress=lambda done, total: begun.set()).close()
        threading.Thread(target=work, daemon=True).start()
        begun.wait()
        """
    for _ in range(2):
        done = run(program)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_process_gets_an_exception_and_may_open_its_own():
    program = """
        import os, sys, threading
        import moesaic
        from moesaic import LLM, SamplingParams
        few = SamplingParams(temperature=0, max_tokens=4)
        options = dict(device="cpu", threads=1, context=4096, max_batch=4)
        llm = LLM("tiny", **options)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                llm.generate("Once", few)
        worker = threading.Thread(target=work)
        worker.start()
        stream = llm.stream("Once upon", SamplingParams(max_tokens=4000, ignore_eos=True))
        next(stream)
        child = os.fork()
        if child == 0:
            import signal
            signal.alarm(40)
            refused = 0
            for call in (lambda: llm.generate("Once", few), lambda: llm.tokenize("a"), lambda: llm.stats(), lambda: next(stream)):
                try:
                    call()
                except moesaic.MoesaicError as error:
                    refused += "fork" in str(error)
            stream.close()
            del stream
            llm.close()
            with LLM("tiny", **options) as own:
                answers = own.generate("Once", few)
            os._exit(10 * refused + len(answers))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stream.close()
        stop.set()
        worker.join()
        print(len(llm.generate("Once", few)))
        """
    done = run(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "41\n1\n", "")


def test_errors_have_their_types_while_the_interpreter_ends():
    program = """
        import builtins
        from moesaic import LLM
        class Last:
            def __init__(self):
                self.engine = LLM("tiny", device="cpu", threads=1, context=256)._engine
            def __del__(self):
                try:
                    self.engine.detokenize([-1])
                except BaseException as error:
                    print(type(error).__name__, error)
        builtins.last = Last()
        """
    done = run(program)
    assert (done.stdout, done.stderr) == ("InvalidRequest token -1 is outside the vocabulary of 4096\n", "")


def test_another_interpreter_is_refused():
    program = """
        import sys
        from moesaic import LLM, MoesaicError
        if sys.version_info >= (3, 13):
            import _interpreters as interpreters
            other, execute = interpreters.create("legacy"), interpreters.exec
        else:
            import _xxsubinterpreters as interpreters
            other, execute = interpreters.create(isolated=False), interpreters.run_string
        llm = LLM("tiny", device="cpu", threads=1, context=256)
        execute(other, f"import sys; sys.path = {sys.path}\\ntry: import moesaic\\nexcept ImportError as error: print(error, flush=True)")
        interpreters.destroy(other)
        print(llm.tokenize("a") == LLM("tiny", device="cpu", threads=1, context=256).tokenize("a"))
        try:
            LLM("/no/such")
        except MoesaicError:
            print("as before")
        """
    done = run(program)
    assert (done.stdout, done.stderr) == ("moesaic works in a process's main interpreter only\nTrue\nas before\n", "")
