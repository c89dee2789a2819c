/* command_rate.c - commands a second that one thread takes off a device command queue and gives to the network, which is none.
 *
 * The whole path of a real world is measured: ring, checks, addresses, protocol, post, completion. The fabric is an array: it completes each WR at
 * the next poll and gives credits and receipts back as a peer would. Producers are not measured: the ring is filled first, then the clock
 * runs while the engine's step empties it; so one core is enough. With N threads each has a world, and so an endpoint, of its own, and the
 * figure is the sum while all run. Under `valgrind --tool=callgrind --toggle-collect=uf_engine_poll` with a small count it
 * gives instructions a command. No timed assertion; a wrong count makes the exit code 1. */
#include "base/clock.h"
#include "base/error.h"
#include "order/codec.h"
#include "world/queue.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 1 << 14, WIRE = 1 << 13, MAX_THREADS = 16, BYTES = 64 };

/* ---------------------------------------------------------------- a network that completes at once */

typedef struct null_fabric {
    uf_fabric base;
    int pe;
    uf_cqe done[WIRE];
    uint32_t n_done;
    uint32_t consumed, told; /* immediates that the peer has taken */
    uint64_t writes;
} null_fabric;

static void answer(null_fabric *f, const uf_cqe *cqe)
{
    f->done[f->n_done++] = *cqe;
}

static int null_post(uf_fabric *fabric, const uf_wr *wr)
{
    null_fabric *f = (null_fabric *)fabric;
    if (f->n_done + 3 > WIRE)
        return UF_EAGAIN;
    f->writes += wr->bytes != 0 && wr->verb != UF_VERB_SEND;
    if (wr->verb == UF_VERB_WRITE_IMM && uf_imm_kind(wr->imm) != UF_IMM_CONTROL && ++f->consumed - f->told >= 64) {
        f->told = f->consumed;
        answer(f, &(uf_cqe){.kind = UF_CQE_IMM, .peer = wr->peer, .imm = uf_imm_control(UF_CONTROL_CREDITS, 0, f->told)});
    }
    if (wr->verb == UF_VERB_WRITE_IMM && uf_imm_kind(wr->imm) == UF_IMM_CONTROL && uf_imm_type(wr->imm) == UF_CONTROL_QUIET)
        answer(f, &(uf_cqe){.kind = UF_CQE_IMM,
                            .peer = wr->peer,
                            .imm = uf_imm_control(UF_CONTROL_RECEIPT, uf_imm_control_bit(wr->imm), uf_imm_value(wr->imm))});
    if (!(wr->flags & UF_WR_SILENT)) {
        uf_cqe *c = &f->done[f->n_done++];
        c->kind = UF_CQE_SENT;
        c->status = UF_OK;
        c->cookie = wr->cookie;
    }
    return UF_OK;
}

static int null_poll(uf_fabric *fabric, uf_cqe *cqes, int max)
{
    null_fabric *f = (null_fabric *)fabric;
    uint32_t n = f->n_done < (uint32_t)max ? f->n_done : (uint32_t)max;
    /* The newest first: no order is promised. */
    f->n_done -= n;
    memcpy(cqes, &f->done[f->n_done], n * sizeof *cqes);
    return (int)n;
}

static int null_open(const uf_fabric_params *p, uf_fabric **out)
{
    extern const struct uf_fabric_ops null_ops;
    null_fabric *f = calloc(1, sizeof *f);
    if (!f)
        return uf_fail(UF_ENOMEM, "no memory");
    f->pe = p->pe;
    f->base = (uf_fabric){.ops = &null_ops,
                          .caps = {.fabric = "none",
                                   .n_rails = 1,
                                   .imm_bits = 32,
                                   .imm_placed = true,
                                   .write_placed = true,
                                   .virtual_address = true,
                                   .max_message = 1u << 30,
                                   .tx_depth = 1024,
                                   .cq_depth = UINT32_MAX,
                                   .max_receives = UINT32_MAX,
                                   .address_bytes = 8}};
    *out = &f->base;
    return UF_OK;
}

static void null_close(uf_fabric *f)
{
    free(f);
}

static int null_address(uf_fabric *f, uint32_t rail, void *address)
{
    (void)rail;
    memset(address, ((null_fabric *)f)->pe, 8);
    return UF_OK;
}

static int null_connect(uf_fabric *f, uint32_t rail, uint32_t peer, const void *address)
{
    (void)f, (void)rail, (void)peer, (void)address;
    return UF_OK;
}

static int null_register(uf_fabric *f, void *ptr, size_t bytes, bool remote, uf_mr **mr)
{
    (void)f, (void)bytes, (void)remote;
    *mr = ptr;
    return UF_OK;
}

static void null_mr_close(uf_fabric *f, uf_mr *mr)
{
    (void)f, (void)mr;
}

static void null_key(const uf_mr *mr, uint32_t rail, uf_fabric_key *key)
{
    *key = (uf_fabric_key){rail, (uint64_t)(uintptr_t)mr};
}

static uint64_t null_desc(const uf_mr *mr, uint32_t rail)
{
    (void)mr, (void)rail;
    return 0;
}

static const char *null_error(uf_fabric *f)
{
    (void)f;
    return "";
}

extern const struct uf_fabric_ops null_ops;
const struct uf_fabric_ops null_ops = {.name = "none",
                                       .open = null_open,
                                       .close = null_close,
                                       .address = null_address,
                                       .connect = null_connect,
                                       .mr_register = null_register,
                                       .mr_close = null_mr_close,
                                       .mr_key = null_key,
                                       .mr_desc = null_desc,
                                       .post = null_post,
                                       .poll = null_poll,
                                       .error = null_error};

/* ---------------------------------------------------------------- a world of two, of which the second only exists */

typedef struct pair {
    uf_group *group;
    uf_world *world, *peer;
    unsigned char *data;
    uint64_t *signals;
    uf_ctx *ctx;
    uf_queue *queue;
    pthread_t thread;
    const char *command;
    uint64_t laps;
    uint64_t cpu_ns, ns, wrong;
} pair;

static int open_pe(pair *p, int pe, uf_world **w)
{
    uf_world_options o = UF_WORLD_OPTIONS;
    void *data = NULL;
    uint64_t *signals = NULL;
    o.pe = pe;
    o.n_pes = 2;
    o.group = p->group;
    o.fabric_ops = &null_ops;
    int rc = uf_world_create(&o, w);
    if (!rc)
        rc = uf_malloc(*w, 1u << 20, 0, &data);
    if (!rc)
        rc = uf_signal_alloc(*w, 64, UF_SIGNAL_DEFAULT, &signals);
    if (!rc && pe == 0) {
        p->data = data;
        p->signals = signals;
    }
    if (rc)
        fprintf(stderr, "PE %d: %s\n", pe, uf_error_message());
    return rc;
}

static void *second_pe(void *arg)
{
    pair *p = arg;
    return open_pe(p, 1, &p->peer) ? p : NULL;
}

static int open_pair(pair *p, const char *command, uint64_t laps)
{
    void *failed;
    pthread_t second;
    uf_queue_options o = {.size = sizeof o, .depth = DEPTH};
    memset(p, 0, sizeof *p);
    p->command = command;
    p->laps = laps;
    if (uf_group_create(2, &p->group) || pthread_create(&second, NULL, second_pe, p))
        return 1;
    int rc = open_pe(p, 0, &p->world);
    pthread_join(second, &failed);
    if (rc || failed || uf_ctx_create(p->world, NULL, &p->ctx) || uf_queue_create(p->ctx, &o, &p->queue)) {
        fprintf(stderr, "%s\n", uf_error_message());
        return 1;
    }
    return 0;
}

static void *leave(void *world)
{
    uf_world_destroy(world);
    return NULL;
}

static void close_pair(pair *p)
{
    pthread_t second;
    p->wrong += uf_queue_destroy(p->queue) != UF_OK;
    p->wrong += uf_ctx_destroy(p->ctx) != UF_OK;
    pthread_create(&second, NULL, leave, p->peer);
    uf_world_destroy(p->world);
    pthread_join(second, NULL);
    uf_group_destroy(p->group);
}

/* ---------------------------------------------------------------- the measurement */

static uf_command command_of(const pair *p, uint64_t i)
{
    uf_command c = {.op = UF_COMMAND_PUT,
                    .pe = strcmp(p->command, "near put_signal") != 0,
                    .bytes = BYTES,
                    .local = (uint64_t)(uintptr_t)(p->data + i % 1024 * BYTES),
                    .remote = (uint64_t)(uintptr_t)(p->data + (i + 1024) % 4096 * BYTES)};
    if (strcmp(p->command, "put") != 0) {
        c.op = UF_COMMAND_PUT_SIGNAL;
        c.atomic = UF_ATOMIC_ADD;
        c.operand = 1;
        c.word = (uint64_t)(uintptr_t)&p->signals[i % 64];
    }
    return c;
}

static void fill(pair *p)
{
    const uf_command_ring *ring = uf_queue_ring(p->queue);
    uint64_t position = 0;
    for (uint64_t i = 0; i < DEPTH; i++) {
        uf_command c = command_of(p, i);
        p->wrong += !uf_command_try_reserve(ring, 1, &position);
        uf_command_write(ring, position, &c);
    }
}

/* Time that this thread had a core: what others on the machine do is not the queue's. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *run(void *arg)
{
    pair *p = arg;
    const uf_command_ring *ring = uf_queue_ring(p->queue);
    for (uint64_t lap = 0; lap <= p->laps; lap++) {
        fill(p);
        uint64_t end = ring->local->reserved, start = uf_clock_ns(), cpu = cpu_ns();
        while (uf_load_relaxed64(&ring->report->consumed) != end)
            uf_progress(p->world);
        if (lap == 0) /* warms up */
            continue;
        p->cpu_ns += cpu_ns() - cpu;
        p->ns += uf_clock_ns() - start;
    }
    uf_counters c = {.size = sizeof c};
    uf_world_counters(p->world, &c);
    p->wrong += c.puts != (p->laps + 1) * DEPTH || uf_queue_status(p->queue) != UF_OK;
    return NULL;
}

/* Of `n` threads together, in millions of commands a second; 0 if anything was wrong. */
typedef struct rates {
    double cpu, wall;
} rates;

static rates measure(const char *command, int n, uint64_t laps)
{
    static pair pairs[MAX_THREADS];
    rates rate = {0, 0};
    uint64_t wrong = 0;
    for (int i = 0; i < n; i++)
        if (open_pair(&pairs[i], command, laps))
            return rate;
    for (int i = 1; i < n; i++)
        pthread_create(&pairs[i].thread, NULL, run, &pairs[i]);
    run(&pairs[0]);
    for (int i = 1; i < n; i++)
        pthread_join(pairs[i].thread, NULL);
    for (int i = 0; i < n; i++) {
        rate.cpu += (double)(laps * DEPTH) * 1e3 / (double)pairs[i].cpu_ns;
        rate.wall += (double)(laps * DEPTH) * 1e3 / (double)pairs[i].ns;
        close_pair(&pairs[i]);
        wrong += pairs[i].wrong;
    }
    return wrong ? (rates){0, 0} : rate;
}

int main(int argc, char **argv)
{
    uint64_t laps = argc > 1 ? strtoull(argv[1], NULL, 0) : 200;
    int most = argc > 2 ? atoi(argv[2]) : 1, wrong = 0;
    static const char *const commands[] = {"put_signal", "put", "near put_signal"};
    setenv("UNFENCE_PROGRESS", "inline", 1);
    setenv("UNFENCE_HEAP_MAX", "256M", 1); /* valgrind reserves no more */
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (argc > 3 && strcmp(argv[3], commands[i]) != 0)
            continue;
        rates one = {0, 0};
        for (int n = 1; n <= most && n <= MAX_THREADS; n *= 2) {
            rates rate = measure(commands[i], n, laps);
            one = n == 1 ? rate : one;
            printf("%-16s %2d thread%s x own endpoint %8.2f M commands/s of core time (%5.2f x one)  %8.2f by the clock (%5.2f x "
                   "one)%s\n",
                   commands[i], n, n > 1 ? "s" : " ", rate.cpu, rate.cpu / one.cpu, rate.wall, rate.wall / one.wall,
                   rate.cpu > 0 ? "" : "  WRONG");
            wrong += rate.cpu <= 0;
        }
    }
    return wrong != 0;
}
