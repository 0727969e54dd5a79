// The fork server's loop without Python: it starts, watches and reports the processes of an order.
//
// A page that is written to after a fork costs a fault and a copy, and Python writes to hundreds. So
// the server stays in here for good. Its processes begin with memory that nobody has written to since
// it was settled, and programs begin by `vfork`, without a copy of Python's memory. `zygote.py` does
// the same where there is no compiler, at a higher cost. Messages: see `orders.py`.
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launcher.h"

enum { REPORT_FD = 3, LENT_FD = 4, CODE_FD = 6, FIRST_FREE_FD = 7, STDLIB_FD = 60 };
enum { CODE, INPUTS, OUTPUTS, LENT, GIVEN = LENT + 2 };  // descriptors that come with an order
enum { SOURCE = 0, CHANNEL = 2, MAX_TESTS = 64, MAX_TEXTS = 64, MESSAGE = 1 << 16 };
enum { NOT_KILLED, CPU, WALL, PEER_ENDED };
static const double CONFINED_S = 60.0;  // only a hang takes longer to confine itself
static const uint64_t BATCH_BYTES = 1 << 20;  // outputs after which no further test is begun

struct kind {  // of process: answers in Python, programs
    int32_t ruleset, interpreter;  // interpreter: -1 to execute the program itself
    struct sock_filter* filter;
    uint32_t length, own_pid_at;
};
struct server {
    int64_t control;
    uint64_t address_space, processes;
    const struct kind* kinds;
};
struct order {
    double cpu_s, wall_s, longest_s, begin_s, peer_ended_s;
    uint64_t address_space, data, stack, output;
    uint32_t kind, lent, tests, arguments, environment, unused;
};
struct facts {
    double cpu_s, wall_s;
    uint64_t peak_kb, written[FILES - 1];  // to standard output, standard error and report
    int32_t exit_code;
    uint32_t killed, confined, unused;
};
struct reply {
    int32_t error;
    uint32_t tests;
    struct facts facts[MAX_TESTS];
};
struct shared {  // memory of the server that its processes give up before they run an answer
    struct {  // what a process notes of itself once it is confined
        double cpu_s, began;
        volatile uint32_t confined;
    } mark;
    struct reply reply;
    union { struct order order; char bytes[MESSAGE]; } message;
};

static struct server server;
static struct shared* shared;
static pid_t own_pid;
static int given[GIVEN];
static char* texts[MAX_TEXTS + 2];

static double clock_s(clockid_t clock) {
    struct timespec now;
    return clock_gettime(clock, &now) ? -1.0 : now.tv_sec + now.tv_nsec / 1e9;
}

static int limit(int resource, uint64_t value) {
    struct rlimit limits;
    if (getrlimit(resource, &limits)) return -1;
    limits.rlim_cur = limits.rlim_max = value < limits.rlim_max ? value : limits.rlim_max;
    return setrlimit(resource, &limits);
}

static int limit_all(const struct order* order) {
    uint64_t own = server.address_space;
    return limit(RLIMIT_CPU, (uint64_t)order->cpu_s + 2) || limit(RLIMIT_AS, own + order->address_space)
        || (order->data && limit(RLIMIT_DATA, order->data))  // a program has none of the server's
        || limit(RLIMIT_FSIZE, order->output) || limit(RLIMIT_NPROC, server.processes)
        || limit(RLIMIT_NOFILE, 64) || limit(RLIMIT_STACK, order->stack) || limit(RLIMIT_CORE, 0)
        || limit(RLIMIT_MEMLOCK, 0) || limit(RLIMIT_MSGQUEUE, 0) || limit(RLIMIT_SIGPENDING, 64);
}

// Puts the descriptors where an answer expects them.
static int place(const int* files) {
    const struct order* order = &shared->message.order;
    for (int at = 0; at <= REPORT_FD; at++)
        if (dup2(files[at], at) < 0) return -1;
    for (uint32_t at = 0; at < 2; at++) {
        int failed = at < order->lent ? dup2(given[LENT + at], LENT_FD + at) < 0 : close(LENT_FD + at);
        if (failed) return -1;
    }
    int interpreted = server.kinds[order->kind].interpreter >= 0;
    if (interpreted && lseek(given[CODE], 0, SEEK_SET)) return -1;  // an earlier test has read it
    return dup3(given[CODE], CODE_FD, interpreted ? 0 : O_CLOEXEC) < 0;
}

// Closes all other descriptors: at once, or when a program is executed.
static int close_others(int executes) {
    if (executes) return syscall(SYS_close_range, FIRST_FREE_FD, ~0U, CLOSE_RANGE_CLOEXEC);
    return syscall(SYS_close_range, FIRST_FREE_FD, STDLIB_FD - 1, 0)
        || syscall(SYS_close_range, STDLIB_FD + 1, ~0U, 0);
}

// Confines this process for the rest of its life; returns the step that the kernel refused.
static const char* confine(const int* files) {
    const struct order* order = &shared->message.order;
    const struct kind* kind = &server.kinds[order->kind];
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) return "prctl";
    if (getppid() != own_pid) _exit(1);  // it died before it could be watched
    if (place(files)) return "dup2";
    if (limit_all(order)) return "setrlimit";
    if (syscall(SYS_landlock_restrict_self, kind->ruleset, 0)) return "landlock_restrict_self";
    if (close_others(order->kind != SOURCE)) return "close_range";
    kind->filter[kind->own_pid_at / sizeof *kind->filter].k = getpid();
    struct sock_fprog program = {.len = kind->length, .filter = kind->filter};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return "seccomp";
    shared->mark.cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    shared->mark.began = clock_s(CLOCK_MONOTONIC);
    shared->mark.confined = 1;
    return NULL;
}

static void say_failure(const char* step) {
    char text[200];
    int size = snprintf(text, sizeof text, "%s: %s\n", step, strerror(errno));
    (void)!write(2, text, size);
}

static void become_program(const int* files) {
    const struct order* order = &shared->message.order;
    const char* step = confine(files);
    if (step == NULL) {
        int interpreter = server.kinds[order->kind].interpreter;
        step = "execveat";
        syscall(SYS_execveat, interpreter >= 0 ? interpreter : CODE_FD, "", texts,
                texts + order->arguments + 1, AT_EMPTY_PATH);
    }
    say_failure(step);
    _exit(1);
}

// Waits for the child and kills it at a limit. Its mark may come late, so limits are worked out anew
// at each turn; a mark that is there can no longer be changed by the child.
static uint32_t watch(pid_t child, int handle, double wall_s, int other) {
    const struct order* order = &shared->message.order;
    clockid_t child_clock = ((clockid_t)~child << 3) | 2;  // clock_getcpuclockid(3)
    double started = clock_s(CLOCK_MONOTONIC), peer_by = 0;
    double wait_s = order->cpu_s < wall_s ? order->cpu_s : wall_s;  // no limit is reached earlier
    struct pollfd waiting[] = {{handle, POLLIN, 0}, {server.control, POLLIN, 0}, {other, 0, 0}};
    for (;;) {
        if (wait_s < 0.001) wait_s = 0.001;
        struct timespec timeout = {(time_t)wait_s, (long)((wait_s - (time_t)wait_s) * 1e9)};
        int ready = ppoll(waiting, 3, &timeout, NULL) > 0;
        if (ready && waiting[0].revents) return NOT_KILLED;
        if (ready && waiting[1].revents) {  // nothing is sent while a process runs: the service is gone
            kill(child, SIGKILL);
            _exit(0);
        }
        double now = clock_s(CLOCK_MONOTONIC);
        if (ready && waiting[2].revents) {
            waiting[2].fd = -1;
            peer_by = now + order->peer_ended_s;
        }
        double cpu_left = order->cpu_s, wall_left = started + CONFINED_S - now;
        if (shared->mark.confined) {
            double used = clock_s(child_clock), deadline = shared->mark.began + wall_s;
            if (used >= 0) cpu_left -= used - shared->mark.cpu_s;
            wall_left = (peer_by && peer_by < deadline ? peer_by : deadline) - now;
        }
        if (cpu_left <= 0 || wall_left <= 0) {
            kill(child, SIGKILL);
            return !shared->mark.confined ? NOT_KILLED : cpu_left <= 0 ? CPU : peer_by ? PEER_ENDED : WALL;
        }
        wait_s = cpu_left < wall_left ? cpu_left : wall_left;
    }
}

// Runs one process to its end. Returns 1 in the process itself if it is to be Python.
static int run_one(const int* files, double wall_s, struct facts* facts) {
    const struct order* order = &shared->message.order;
    shared->mark.confined = 0;
    double started = clock_s(CLOCK_MONOTONIC);
    pid_t child = order->kind == SOURCE ? fork() : vfork();
    if (child == 0) {
        if (order->kind != SOURCE) become_program(files);
        populate();
        const char* refused = confine(files);
        if (refused != NULL) say_failure(refused), _exit(1);
        if (munmap(shared, sizeof *shared)) _exit(1);
        return 1;
    }
    if (child < 0) return -1;
    int handle = syscall(SYS_pidfd_open, child, 0);
    uint32_t killed = NOT_KILLED;
    if (handle < 0) kill(child, SIGKILL);
    else killed = watch(child, handle, wall_s, order->lent == CHANNEL ? given[LENT] : -1);
    if (handle >= 0) close(handle);
    int status;
    struct rusage usage;
    if (wait4(child, &status, 0, &usage) < 0 || handle < 0) return -1;
    if (own_pid == 1) kill(-1, SIGKILL);  // of a process namespace: end whatever could still be in it
    double cpu_s = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec
        + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6 - (shared->mark.confined ? shared->mark.cpu_s : 0);
    facts->cpu_s = cpu_s > 0 ? cpu_s : 0;
    facts->wall_s = clock_s(CLOCK_MONOTONIC) - (shared->mark.confined ? shared->mark.began : started);
    facts->peak_kb = usage.ru_maxrss;
    facts->exit_code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    // A process that was ending by itself when its limit came was not killed.
    facts->killed = facts->exit_code == -SIGKILL ? killed : NOT_KILLED;
    facts->confined = shared->mark.confined;
    return 0;
}

// Runs a test: its own files, its process, and what that wrote. As `run_one`.
static int run_test(uint64_t at, uint64_t size, double wall_s, struct facts* facts) {
    int files[FILES] = {-1, -1, -1, -1};
    int result = make_files(given[INPUTS], at, size, files);
    if (result == 0) result = run_one(files, wall_s, facts);
    if (result == 0) result = collect(files, given[OUTPUTS], facts->written);
    if (result != 1)
        for (int n = 0; n < FILES; n++)
            if (files[n] >= 0) close(files[n]);
    return result;
}

// Runs the tests of an order until one does not end well. Returns 1 in a process that is to be Python.
static int run_order(void) {
    const struct order* order = &shared->message.order;
    const uint64_t* sizes = (const uint64_t*)(order + 1);
    double started = clock_s(CLOCK_MONOTONIC), used_s = 0;
    uint64_t at = 0, output = 0;
    struct reply* reply = &shared->reply;
    for (uint32_t n = 0; n < order->tests; n++) {
        if (n && clock_s(CLOCK_MONOTONIC) - started >= order->begin_s) break;
        struct facts* facts = &reply->facts[n];
        errno = 0;
        double left_s = order->longest_s - used_s;
        int result = run_test(at, sizes[n], order->wall_s < left_s ? order->wall_s : left_s, facts);
        if (result == 1) return 1;
        if (result < 0) {
            reply->error = errno ? errno : EIO;
            return 0;
        }
        reply->tests = n + 1;
        at += sizes[n];
        used_s += facts->wall_s;
        for (int k = 0; k < FILES - 1; k++) output += facts->written[k];
        if (facts->exit_code || !facts->confined || output >= BATCH_BYTES) break;
    }
    return 0;
}

// Takes an order; returns 0 when the service has hung up.
static int receive(void) {
    union { struct cmsghdr head; char bytes[CMSG_SPACE(sizeof given)]; } control;
    struct iovec part = {&shared->message, sizeof shared->message - 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                            .msg_controllen = sizeof control};
    ssize_t size;
    do size = recvmsg(server.control, &header, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size <= 0) return 0;
    for (int n = 0; n < GIVEN; n++) given[n] = -1;
    struct cmsghdr* found = CMSG_FIRSTHDR(&header);
    if (found != NULL && found->cmsg_type == SCM_RIGHTS)
        memcpy(given, CMSG_DATA(found), found->cmsg_len - CMSG_LEN(0));
    const struct order* order = &shared->message.order;
    if (order->tests > MAX_TESTS || order->arguments + order->environment > MAX_TEXTS) return 0;
    char* text = shared->message.bytes + sizeof *order + order->tests * sizeof(uint64_t);
    shared->message.bytes[size] = 0;
    for (uint32_t n = 0; n < order->arguments + order->environment; n++, text += strlen(text) + 1)
        texts[n < order->arguments ? n : n + 1] = text;
    texts[order->arguments] = texts[order->arguments + order->environment + 1] = NULL;
    return 1;
}

// Serves orders until the service hangs up, and returns 0; or 1, in a process that is to be Python.
int serve(const struct server* settings) {
    server = *settings;
    own_pid = getpid();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 0;
    settle_all();
    while (receive()) {
        shared->reply.error = shared->reply.tests = 0;
        if (run_order()) return 1;
        for (int n = 0; n < GIVEN; n++)
            if (given[n] >= 0) close(given[n]);
        size_t size = offsetof(struct reply, facts) + shared->reply.tests * sizeof(struct facts);
        if (send(server.control, &shared->reply, size, MSG_NOSIGNAL) < 0) return 0;
    }
    return 0;
}
