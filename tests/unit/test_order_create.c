/* test_order_create.c - every bound of a configuration is checked and named, and creation is the only time that memory is taken. */
#include "order_pair.h"

static uint64_t allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
int __real_posix_memalign(void **p, size_t align, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
int __wrap_posix_memalign(void **p, size_t align, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    allocations++;
    return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    allocations++;
    return __real_realloc(p, bytes);
}

static size_t aligned_bytes;
static bool no_memory;

int __wrap_posix_memalign(void **p, size_t align, size_t bytes)
{
    allocations++;
    aligned_bytes = bytes;
    return no_memory ? 12 : __real_posix_memalign(p, align, bytes);
}

static void refuse_config(const uf_order_config *config, const char *field)
{
    uf_order_edges edges = {NULL, pair_post, pair_apply, pair_done, pair_failed};
    uf_order *order = NULL;
    assert_int_equal(uf_order_create(config, &edges, &order), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), field));
    assert_null(order);
}

#define REFUSE(field, value)                                                                                                     \
    {                                                                                                                            \
        uf_order_config c = pair_config();                                                                                       \
        c.field = value;                                                                                                         \
        refuse_config(&c, #field);                                                                                               \
    }

static void each_bound_is_checked_and_named(void **state)
{
    (void)state;
    REFUSE(window, 1)
    REFUSE(window, 3)
    REFUSE(window, 1u << 16)
    REFUSE(credits, 3)
    REFUSE(credits, (1u << 15) + 1)
    REFUSE(message_credits, 1)
    REFUSE(message_credits, (1u << 12) + 1)
    REFUSE(n_flows, 0)
    REFUSE(n_flows, (1u << 20) + 1)
    REFUSE(self, 2)
    REFUSE(n_rails, 0)
    REFUSE(n_rails, 17)
    REFUSE(tx_depth, 3)
    REFUSE(tx_depth, 1u << 16)
    REFUSE(queue_ops, 0)
    REFUSE(queue_ops, (1u << 20) + 1)
    REFUSE(max_lanes, 0)
    REFUSE(max_lanes, (1u << 20) + 1)
    REFUSE(max_local_lanes, 0)
    REFUSE(max_fetches, (1u << 12) + 1)
    REFUSE(max_message, 0)
}

static void smallest_and_largest_windows_are_accepted(void **state)
{
    (void)state;
    uf_order_edges edges = {NULL, pair_post, pair_apply, pair_done, pair_failed};
    uf_order *order;
    uf_order_config c = pair_config();
    c.window = 2;
    assert_int_equal(uf_order_create(&c, &edges, &order), UF_OK);
    uf_order_destroy(order);
    c.window = 1u << 15;
    assert_int_equal(uf_order_create(&c, &edges, &order), UF_OK);
    uf_order_destroy(order);
    uf_order_destroy(NULL);
}

static void bytes_tells_what_create_takes(void **state)
{
    (void)state;
    uf_order_edges edges = {NULL, pair_post, pair_apply, pair_done, pair_failed};
    uf_order *order;
    uf_order_config c = pair_config();
    uint64_t before = allocations;
    assert_int_equal(uf_order_create(&c, &edges, &order), UF_OK);
    assert_int_equal(allocations, before + 1);
    assert_int_equal(aligned_bytes, uf_order_bytes(&c));
    uf_order_destroy(order);
}

static void out_of_memory_is_an_error_with_the_size(void **state)
{
    (void)state;
    uf_order_edges edges = {NULL, pair_post, pair_apply, pair_done, pair_failed};
    uf_order *order = NULL;
    uf_order_config c = pair_config();
    no_memory = true;
    assert_int_equal(uf_order_create(&c, &edges, &order), UF_ENOMEM);
    no_memory = false;
    assert_null(order);
    assert_non_null(strstr(uf_error_message(), "KiB"));
}

/* Every kind of operation, many times, with waiting in every queue: not one allocation. */
static void nothing_is_allocated_after_create(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8}, ordered = {.window = 8, .ordered = true};
    uf_order_lane *lanes[2] = {pair_lane(p, &ctx), pair_lane(p, &ordered)};
    uint64_t before = allocations;
    for (uint32_t i = 0; i < 4000; i++) {
        uf_order_op op = pair_put_signal(i % 7 * 1500, i);
        op.kind = (uint8_t)(i % 5);
        op.op = op.kind == UF_ORDER_ATOMIC ? (uint8_t)(i % 12) : (uint8_t)(i % 2);
        op.width = 8;
        op.indexed = op.kind != UF_ORDER_ATOMIC;
        op.flags = (uint8_t)(i % 3 == 0 ? UF_STRONG : i % 11 == 0 ? UF_SETTLED : 0);
        op.user = i + 1;
        p->refuse = i % 16 == 5;
        p->stop_imm = i % 128 > 100;
        if (i % 50 == 0)
            ctx.fence_epoch++;
        uf_order_mark mark;
        uf_order_submit(p->side[0].order, lanes[i & 1], &op);
        uf_order_mark_set(p->side[0].order, lanes[i & 1], i & 2, &mark);
        if (i % 3 == 0)
            pair_move(p);
    }
    p->refuse = p->stop_imm = false;
    pair_move(p);
    assert_int_equal(allocations, before);
    assert_false(uf_order_busy(p->side[0].order));
    pair_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_bound_is_checked_and_named),   cmocka_unit_test(smallest_and_largest_windows_are_accepted),
        cmocka_unit_test(bytes_tells_what_create_takes),     cmocka_unit_test(out_of_memory_is_an_error_with_the_size),
        cmocka_unit_test(nothing_is_allocated_after_create),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
