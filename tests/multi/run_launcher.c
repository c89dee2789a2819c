/* run_launcher.c - `unfence run`: what it starts, how it ends, and that nothing stays behind.
 *
 * argv[1] is the launcher, argv[2] the program `meet`. Every job inherits the write end of a pipe: when its read end says
 * "end of file", the launcher and everything it started, children of children too, are gone. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define LIMIT_MS  50000
#define MOST_ARGS 24

static const char *launcher, *meet;

typedef struct job {
    pid_t pid;
    int in, out, err, alive;
    char text[2][65536]; /* standard output and error */
    size_t used[2];
} job;

/* Starts the launcher with the words up to NULL. */
static void job_start(job *j, const char *const *words)
{
    int in[2], out[2], err[2], alive[2];
    char *argv[MOST_ARGS + 2] = {(char *)launcher};
    memset(j, 0, sizeof *j);
    for (int i = 0; words[i]; i++) {
        assert_true(i < MOST_ARGS);
        argv[i + 1] = (char *)words[i];
    }
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || pipe2(alive, O_CLOEXEC))
        abort();
    j->pid = fork();
    if (j->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        fcntl(alive[1], F_SETFD, 0); /* this one is inherited by all */
        execv(launcher, argv);
        _exit(125);
    }
    close(in[0]);
    close(out[1]);
    close(err[1]);
    close(alive[1]);
    j->in = in[1];
    j->out = out[0];
    j->err = err[0];
    j->alive = alive[0];
}

/* Reads both streams until `text` is in one of them, or both have ended. */
static bool job_read_until(job *j, const char *text)
{
    for (;;) {
        if (text && (strstr(j->text[0], text) || strstr(j->text[1], text)))
            return true;
        struct pollfd p[2] = {{.fd = j->out, .events = POLLIN}, {.fd = j->err, .events = POLLIN}};
        if (j->out < 0 && j->err < 0)
            return !text;
        if (poll(p, 2, LIMIT_MS) <= 0)
            return false;
        for (int i = 0; i < 2; i++) {
            if (!p[i].revents)
                continue;
            ssize_t n = read(p[i].fd, j->text[i] + j->used[i], sizeof j->text[i] - 1 - j->used[i]);
            if (n > 0) {
                j->used[i] += (size_t)n;
                j->text[i][j->used[i]] = 0;
                continue;
            }
            close(p[i].fd);
            *(i ? &j->err : &j->out) = -1;
        }
    }
}

/* Waits for the end of the launcher and of everything else; its exit code, or -signal. */
static int job_end(job *j)
{
    int status = 0;
    char byte;
    if (j->in >= 0)
        close(j->in);
    bool ended = job_read_until(j, NULL);
    struct pollfd p = {.fd = j->alive, .events = POLLIN};
    ended = ended && poll(&p, 1, LIMIT_MS) == 1 && read(j->alive, &byte, 1) == 0;
    if (!ended) {
        print_message("the job did not end; it wrote: %s\n%s\n", j->text[0], j->text[1]);
        kill(j->pid, SIGKILL);
    }
    waitpid(j->pid, &status, 0);
    close(j->alive);
    assert_true(ended);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#define RUN(j, ...) run_job_to_end(j, (const char *const[]){__VA_ARGS__, NULL})
static int run_job_to_end(job *j, const char *const *words)
{
    job_start(j, words);
    close(j->in);
    j->in = -1;
    return job_end(j);
}

static void assert_has(const char *text, const char *part)
{
    if (!strstr(text, part))
        print_message("\"%s\" is not in: %s\n", part, text);
    assert_non_null(strstr(text, part));
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        n++;
    return n;
}

/* ---------------------------------------------------------------- what it starts */

static void pes_meet_by_what_the_launcher_tells_them(void **state)
{
    (void)state;
    job j;
    assert_int_equal(RUN(&j, "-n", "8", "--", meet), 0);
    assert_int_equal(count(j.text[0], "] met 8 as unfence run\n"), 8);
    assert_int_equal(RUN(&j, "-n", "1", "--", meet), 0);
    assert_string_equal(j.text[0], "[0] met 1 as unfence run\n");
}

static void pes_meet_by_torchrun_and_slurm_variables(void **state)
{
    (void)state;
    job j;
    char script[1024];
    /* The port of torchrun's store is that of the launcher here: taken, as it is in life. */
    snprintf(script, sizeof script,
             "export RANK=$UNFENCE_PE LOCAL_RANK=$UNFENCE_PE WORLD_SIZE=$UNFENCE_N_PES MASTER_ADDR=localhost "
             "MASTER_PORT=${UNFENCE_ROOT##*:};"
             "unset UNFENCE_PE UNFENCE_N_PES UNFENCE_ROOT UNFENCE_JOB; exec %s",
             meet);
    assert_int_equal(RUN(&j, "-n", "5", "--", "sh", "-c", script), 0);
    assert_int_equal(count(j.text[0], "met 5 as torchrun"), 5);
    snprintf(script, sizeof script,
             "export SLURM_PROCID=$UNFENCE_PE SLURM_NTASKS=$UNFENCE_N_PES SLURM_STEP_NODELIST=localhost "
             "SLURM_JOB_ID=${UNFENCE_ROOT##*:} SLURM_STEP_ID=0;"
             "unset UNFENCE_PE UNFENCE_N_PES UNFENCE_ROOT UNFENCE_JOB; exec %s",
             meet);
    assert_int_equal(RUN(&j, "-n", "5", "--", "sh", "-c", script), 0);
    assert_int_equal(count(j.text[0], "met 5 as Slurm"), 5);
}

static void two_jobs_at_once_do_not_meet(void **state)
{
    (void)state;
    static job j[4];
    for (int i = 0; i < 4; i++)
        job_start(&j[i], (const char *const[]){"-n", "3", "--", meet, NULL});
    for (int i = 0; i < 4; i++) {
        assert_int_equal(job_end(&j[i]), 0);
        assert_int_equal(count(j[i].text[0], "met 3"), 3);
    }
}

static void many_more_pes_than_cores_start(void **state)
{
    (void)state;
    job j;
    assert_int_equal(RUN(&j, "-n", "150", "--bind", "--", "sh", "-c", "echo $UNFENCE_PE/$UNFENCE_N_PES"), 0);
    assert_int_equal(count(j.text[0], "/150\n"), 150);
    assert_has(j.text[0], "[149] 149/150\n");
}

static void variables_are_set_for_all_pes(void **state)
{
    (void)state;
    job j;
    assert_int_equal(RUN(&j, "-n", "2", "--env", "COLOUR=deep blue", "--env=OTHER=a=b", "--", "sh", "-c", "echo $COLOUR $OTHER"),
                     0);
    assert_has(j.text[0], "[0] deep blue a=b\n");
    assert_has(j.text[0], "[1] deep blue a=b\n");
}

static void standard_input_goes_to_pe_0_only(void **state)
{
    (void)state;
    job j;
    job_start(&j, (const char *const[]){"-n", "3", "--", "sh", "-c", "cat; echo end", NULL});
    assert_int_equal(write(j.in, "some words\n", 11), 11);
    assert_int_equal(job_end(&j), 0);
    assert_has(j.text[0], "[0] some words\n");
    assert_has(strstr(j.text[0], "[0] some words\n"), "[0] end\n"); /* others may say theirs between */
    assert_int_equal(count(j.text[0], "some words"), 1);
    assert_int_equal(count(j.text[0], "] end\n"), 3);
}

/* ---------------------------------------------------------------- output */

static void output_comes_by_whole_lines_with_the_pe_in_front(void **state)
{
    (void)state;
    job j;
    assert_int_equal(RUN(&j, "-n", "2", "--", "sh", "-c", "printf 'one\\ntwo'; printf 'wrong\\n\\n' >&2"), 0);
    for (int pe = 0; pe < 2; pe++) {
        char out[64], err[64];
        snprintf(out, sizeof out, "[%d] one\n", pe);
        snprintf(err, sizeof err, "[%d] wrong\n", pe);
        assert_has(j.text[0], out);
        assert_has(j.text[1], err);
        snprintf(out, sizeof out, "[%d] two\n", pe); /* the end of a line is made up for */
        snprintf(err, sizeof err, "[%d] \n", pe);
        assert_has(j.text[0], out);
        assert_has(j.text[1], err);
    }
    assert_int_equal(strlen(j.text[0]), 2 * strlen("[0] one\n[0] two\n"));
}

static void a_progress_bar_is_shown_as_it_looked_last(void **state)
{
    (void)state;
    job j;
    assert_int_equal(RUN(&j, "-n", "1", "--", "printf", "10%%\\r 50%%\\r100%%\\r\\nover\\r\\n"), 0);
    assert_string_equal(j.text[0], "[0] 100%\n[0] over\n");
}

static void without_prefix_pe_0_writes_as_if_alone(void **state)
{
    (void)state;
    job j;
    assert_int_equal(RUN(&j, "-n", "2", "--no-prefix", "--", "printf", "10%%\\r20%%\\n"), 0);
    assert_has(j.text[0], "10%\r20%\n");
    assert_has(j.text[0], "[1] 20%\n");
    assert_null(strstr(j.text[0], "[0]"));
}

static void a_long_line_and_much_output_arrive_whole(void **state)
{
    (void)state;
    job j;
    assert_int_equal(RUN(&j, "-n", "2", "--", "sh", "-c", "head -c 20000 /dev/zero | tr '\\0' x; echo; seq 1 1000 | tail -n 1"),
                     0);
    assert_int_equal(strlen(j.text[0]), 2 * (20000 + 5 + 9));
}

static void logs_hold_what_each_pe_wrote(void **state)
{
    (void)state;
    job j;
    char directory[] = "/tmp/unfence-test-XXXXXX", path[64], text[64] = "";
    assert_non_null(mkdtemp(directory));
    assert_int_equal(RUN(&j, "-n", "2", "--pe-log", directory, "--", "sh", "-c", "printf 'a\\rb'; echo to error >&2"), 0);
    for (int pe = 0; pe < 2; pe++) {
        static const char *const stream[] = {"out", "err"}, *const want[] = {"a\rb", "to error\n"};
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof path, "%s/pe-%d.%s", directory, pe, stream[i]);
            int fd = open(path, O_RDONLY);
            ssize_t n = read(fd, text, sizeof text - 1);
            close(fd);
            unlink(path);
            text[n > 0 ? n : 0] = 0;
            assert_string_equal(text, want[i]);
        }
    }
    assert_int_equal(rmdir(directory), 0); /* and nothing else */
}

/* ---------------------------------------------------------------- how it ends */

static void the_first_pe_that_fails_ends_the_job_with_its_code(void **state)
{
    (void)state;
    job j;
    /* The others end with other codes, as they are asked to end: that is not the cause. */
    assert_int_equal(
        RUN(&j, "-n", "4", "--", "sh", "-c",
            "if [ $UNFENCE_PE = 2 ]; then echo no more paper >&2; exit 42; fi; trap 'exit 3' TERM; sleep 1000 & wait"),
        42);
    assert_has(j.text[1], "unfence: PE 2 exited with code 42");
    assert_has(j.text[1], "its last message: no more paper\n");
    assert_int_equal(count(j.text[1], "unfence:"), 1);
}

static void a_signal_gives_128_and_its_number(void **state)
{
    (void)state;
    job j;
    assert_int_equal(RUN(&j, "-n", "3", "--", "sh", "-c", "[ $UNFENCE_PE = 1 ] && kill -KILL $$; exec sleep 1000"),
                     128 + SIGKILL);
    assert_has(j.text[1], "unfence: PE 1 was ended by signal 9");
    /* Those who hear of a death and give up are not blamed for it. */
    for (int round = 0; round < 20; round++) {
        assert_int_equal(RUN(&j, "-n", "6", "--", meet, "die", "4"), 128 + SIGKILL);
        assert_has(j.text[1], "unfence: PE 4 was ended by signal 9");
    }
}

/* All have failed before the launcher, which is stopped meanwhile, can look: the first is blamed, not the one with the lowest number. */
static void of_several_that_failed_the_first_is_blamed(void **state)
{
    (void)state;
    static const int order[] = {1, 0, 2};
    job j;
    char directory[] = "/tmp/unfence-test-XXXXXX", path[3][64], word[32];
    assert_non_null(mkdtemp(directory));
    for (int pe = 0; pe < 3; pe++) {
        snprintf(path[pe], sizeof path[pe], "%s/%d", directory, pe);
        assert_int_equal(mkfifo(path[pe], 0600), 0);
    }
    job_start(&j,
              (const char *const[]){"-n", "3", "--", "sh", "-c",
                                    "echo number $UNFENCE_PE is $$.; read code <$0/$UNFENCE_PE; exit $code", directory, NULL});
    for (int pe = 0; pe < 3; pe++) {
        snprintf(word, sizeof word, "number %d is ", pe);
        assert_true(job_read_until(&j, word));
    }
    assert_int_equal(kill(j.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(j.pid, NULL, WUNTRACED), j.pid);
    for (int i = 0; i < 3; i++) {
        snprintf(word, sizeof word, "number %d is ", order[i]);
        struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, atoi(strstr(j.text[0], word) + strlen(word)), 0), .events = POLLIN};
        assert_true(p.fd >= 0);
        FILE *fifo = fopen(path[order[i]], "w");
        assert_non_null(fifo);
        fprintf(fifo, "%d\n", 40 + order[i]);
        fclose(fifo);
        assert_int_equal(poll(&p, 1, LIMIT_MS), 1); /* it has ended */
        close(p.fd);
        unlink(path[order[i]]);
    }
    rmdir(directory);
    assert_int_equal(kill(j.pid, SIGCONT), 0);
    assert_int_equal(job_end(&j), 41);
    assert_has(j.text[1], "unfence: PE 1 exited with code 41");
}

static void a_crash_is_not_hidden_by_libraries_that_catch_it(void **state)
{
    (void)state;
    job j;
    const char *const show[] = {"-n", "1", "--", "sh", "-c", "echo $IPATH_NO_BACKTRACE $HFI_NO_BACKTRACE", NULL};
    assert_int_equal(run_job_to_end(&j, show), 0);
    assert_has(j.text[0], "[0] 1 1\n");
    assert_int_equal(RUN(&j, "-n", "1", "--env", "IPATH_NO_BACKTRACE=0", "--", "sh", "-c", "echo $IPATH_NO_BACKTRACE"), 0);
    assert_has(j.text[0], "[0] 0\n"); /* who wants them has them */
    assert_int_equal(RUN(&j, "-n", "2", "--", meet, "die", "1", "11"), 128 + SIGSEGV);
    assert_has(j.text[1], "unfence: PE 1 was ended by signal 11");
}

static void a_pe_that_ends_well_leaves_the_others_alone(void **state)
{
    (void)state;
    job j;
    job_start(&j, (const char *const[]){"-n", "2", "--", "sh", "-c",
                                        "if [ $UNFENCE_PE = 1 ]; then echo gone; else read line; echo $line; fi", NULL});
    assert_true(job_read_until(&j, "gone"));
    assert_int_equal(write(j.in, "still here\n", 11), 11);
    assert_int_equal(job_end(&j), 0);
    assert_has(j.text[0], "[0] still here\n");
}

static void after_the_timeout_the_job_ends(void **state)
{
    (void)state;
    job j;
    assert_int_equal(RUN(&j, "-n", "2", "--timeout", "0.2", "--", "sleep", "1000"), 124);
    assert_has(j.text[1], "--timeout");
}

/* PEs with children, some outside of their group, some deaf to SIGTERM. */
static const char stubborn[] = "trap '' TERM INT; sleep 1000 & setsid sleep 1000 & echo ready; wait; wait; sleep 1000";

static void end_by_signal(int signal, int code)
{
    job j;
    job_start(&j, (const char *const[]){"-n", "3", "--grace", "0.1", "--", "sh", "-c", stubborn, NULL});
    assert_true(job_read_until(&j, "[0] ready"));
    assert_true(job_read_until(&j, "[1] ready"));
    assert_true(job_read_until(&j, "[2] ready"));
    kill(j.pid, signal);
    assert_int_equal(job_end(&j), code);
}

static void ctrl_c_and_sigterm_leave_nothing_behind(void **state)
{
    (void)state;
    end_by_signal(SIGINT, 130);
    end_by_signal(SIGTERM, 143);
    end_by_signal(SIGHUP, 129);
}

static void a_second_signal_does_not_wait_for_the_grace(void **state)
{
    (void)state;
    job j;
    job_start(&j, (const char *const[]){"-n", "2", "--grace", "1000", "--", "sh", "-c", stubborn, NULL});
    assert_true(job_read_until(&j, "[0] ready"));
    assert_true(job_read_until(&j, "[1] ready"));
    kill(j.pid, SIGINT);
    assert_true(job_read_until(&j, "interrupted"));
    kill(j.pid, SIGINT);
    assert_int_equal(job_end(&j), 130);
}

static void kill_launcher_of(const char *script)
{
    job j;
    job_start(&j, (const char *const[]){"-n", "4", "--", "sh", "-c", script, NULL});
    for (int pe = 0; pe < 4; pe++) {
        char ready[32];
        snprintf(ready, sizeof ready, "[%d] ready", pe);
        assert_true(job_read_until(&j, ready));
    }
    kill(j.pid, SIGKILL);
    assert_int_equal(job_end(&j), -SIGKILL);
}

static void pes_die_with_a_killed_launcher(void **state)
{
    (void)state;
    kill_launcher_of("trap '' TERM INT HUP; echo ready; exec sleep 1000");
    /* And so does what they started. */
    kill_launcher_of("sh -c 'echo ready; sleep 1000; echo over'; echo over");
}

static void a_reader_that_has_seen_enough_ends_the_job(void **state)
{
    (void)state;
    job j;
    job_start(&j, (const char *const[]){"-n", "2", "--grace", "0.1", "--", "sh", "-c", "while echo more; do :; done", NULL});
    assert_true(job_read_until(&j, "more"));
    close(j.out);
    j.out = -1;
    assert_int_equal(job_end(&j), 128 + SIGPIPE);
}

static void wrong_command_lines_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *words[8];
        int code;
        const char *said;
    } lines[] = {
        {{"-n", "0", "true"}, 2, "-n is \"0\""},
        {{"-n", "x", "true"}, 2, "-n is \"x\""},
        {{"-n", "70000", "true"}, 2, "65536"},
        {{"true"}, 2, "-n N is missing"},
        {{"-n", "2"}, 2, "which program"},
        {{"-n", "2", "--"}, 2, "which program"},
        {{"-n"}, 2, "needs a value"},
        {{"-n", "2", "--tiemout", "3", "true"}, 2, "did you mean \"--timeout\"?"},
        {{"-n", "2", "--timeout", "soon", "true"}, 2, "number of seconds"},
        {{"-n", "2", "--bind=1", "true"}, 2, "takes no value"},
        {{"-n", "2", "--env", "COLOUR", "true"}, 2, "NAME=value"},
        {{"-n", "2", "--env", "UNFENCE_PE=1", "true"}, 2, "set by unfence run itself"},
        {{"-n", "2", "no-such-program-here"}, 127, "no program \"no-such-program-here\""},
        {{"-n", "2", "/no/such/program"}, 127, "No such file"},
        {{"-n", "2", "/etc/passwd"}, 126, "not an executable"},
        {{"-n2", "--help"}, 0, ""},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        job j;
        assert_int_equal(run_job_to_end(&j, lines[i].words), lines[i].code);
        assert_has(j.text[1], lines[i].said);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pes_meet_by_what_the_launcher_tells_them),
        cmocka_unit_test(pes_meet_by_torchrun_and_slurm_variables),
        cmocka_unit_test(two_jobs_at_once_do_not_meet),
        cmocka_unit_test(many_more_pes_than_cores_start),
        cmocka_unit_test(variables_are_set_for_all_pes),
        cmocka_unit_test(standard_input_goes_to_pe_0_only),
        cmocka_unit_test(output_comes_by_whole_lines_with_the_pe_in_front),
        cmocka_unit_test(a_progress_bar_is_shown_as_it_looked_last),
        cmocka_unit_test(without_prefix_pe_0_writes_as_if_alone),
        cmocka_unit_test(a_long_line_and_much_output_arrive_whole),
        cmocka_unit_test(logs_hold_what_each_pe_wrote),
        cmocka_unit_test(the_first_pe_that_fails_ends_the_job_with_its_code),
        cmocka_unit_test(a_signal_gives_128_and_its_number),
        cmocka_unit_test(of_several_that_failed_the_first_is_blamed),
        cmocka_unit_test(a_crash_is_not_hidden_by_libraries_that_catch_it),
        cmocka_unit_test(a_pe_that_ends_well_leaves_the_others_alone),
        cmocka_unit_test(after_the_timeout_the_job_ends),
        cmocka_unit_test(ctrl_c_and_sigterm_leave_nothing_behind),
        cmocka_unit_test(a_second_signal_does_not_wait_for_the_grace),
        cmocka_unit_test(pes_die_with_a_killed_launcher),
        cmocka_unit_test(a_reader_that_has_seen_enough_ends_the_job),
        cmocka_unit_test(wrong_command_lines_are_refused),
    };
    if (argc != 3) {
        fprintf(stderr, "usage: run_launcher LAUNCHER MEET\n");
        return 2;
    }
    launcher = argv[1];
    meet = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
