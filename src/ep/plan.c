/* plan.c - where each row of a dispatch goes, and in which order the rows of a combine are added.
 *
 * Everything here is arithmetic on the routing table (n_tokens x top_k expert numbers): no memory is taken, nothing is sent, and the same
 * input always gives the same answer on every PE. A token goes to a PE once, however many of its lanes name experts there;
 * "is this the first lane of that owner?" is answered by looking back over the token's own lanes, at most 31 of them, which is
 * cheaper than a table of PEs to clear. Expert numbers must have passed uf_ep_routing_check before any other function sees them. */
#include "ep/plan.h"
#include "base/error.h"

enum { MAX_PES = 1024, MAX_EXPERTS = 2048, MAX_TOP_K = 32 };

int uf_ep_shape_check(const uf_ep_shape *shape)
{
    if (shape->n_pes < 1 || shape->n_pes > MAX_PES)
        return uf_fail(UF_EINVAL, "expert parallelism over %d PEs: 1 to %d are supported", shape->n_pes, MAX_PES);
    if (shape->n_experts < 1 || shape->n_experts > MAX_EXPERTS)
        return uf_fail(UF_EINVAL, "n_experts is %d: 1 to %d are supported", shape->n_experts, MAX_EXPERTS);
    if (shape->n_experts % shape->n_pes)
        return uf_fail(UF_EINVAL,
                       "n_experts is %d, which is not a multiple of the %d PEs: each PE owns the same number of experts",
                       shape->n_experts, shape->n_pes);
    if (shape->top_k < 1 || shape->top_k > MAX_TOP_K)
        return uf_fail(UF_EINVAL, "top_k is %d: 1 to %d are supported", shape->top_k, MAX_TOP_K);
    if (shape->top_k > shape->n_experts)
        return uf_fail(UF_EINVAL, "top_k is %d, but there are only %d experts", shape->top_k, shape->n_experts);
    if (shape->max_tokens < 0)
        return uf_fail(UF_EINVAL, "max_tokens is %d: it cannot be negative", shape->max_tokens);
    if ((int64_t)shape->max_tokens * shape->n_pes > INT32_MAX || (int64_t)shape->max_tokens * shape->top_k > INT32_MAX)
        return uf_fail(UF_EINVAL, "max_tokens is %d: times %d PEs and times top_k %d it must stay below 2^31", shape->max_tokens,
                       shape->n_pes, shape->top_k);
    return UF_OK;
}

int uf_ep_routing_find(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, uf_ep_fault *fault)
{
    *fault = (uf_ep_fault){UF_EP_FAULT_NONE, 0, 0, 0};
    if (n_tokens < 0 || n_tokens > shape->max_tokens) {
        *fault = (uf_ep_fault){UF_EP_FAULT_TOKENS, -1, -1, n_tokens};
        return UF_EINVAL;
    }
    for (int i = 0; i < n_tokens; i++) {
        const int32_t *e = experts + (size_t)i * (size_t)shape->top_k;
        for (int j = 0; j < shape->top_k; j++) {
            if (e[j] < -1 || e[j] >= shape->n_experts) {
                *fault = (uf_ep_fault){UF_EP_FAULT_RANGE, i, j, e[j]};
                return UF_EINVAL;
            }
            for (int l = 0; l < j && e[j] >= 0; l++)
                if (e[l] == e[j]) {
                    *fault = (uf_ep_fault){UF_EP_FAULT_TWICE, i, j, e[j]};
                    return UF_EINVAL;
                }
        }
    }
    return UF_OK;
}

enum { CALL_BITS = 24, KIND_BITS = 4, LANE_BITS = 4, VALUE_BITS = 32 };
_Static_assert(CALL_BITS + KIND_BITS + LANE_BITS + VALUE_BITS == 64, "a fault is one word");
_Static_assert(UF_EP_FAULT_HANDLE < 1 << KIND_BITS && UF_EP_ARG_RECEIVED < 1 << LANE_BITS, "kinds and arguments fit");

uint64_t uf_ep_fault_pack(const uf_ep_fault *f, uint64_t call)
{
    return call << (64 - CALL_BITS) | (uint64_t)f->kind << (VALUE_BITS + LANE_BITS) |
           (uint64_t)(f->lane & ((1 << LANE_BITS) - 1)) << VALUE_BITS | (uint32_t)f->value;
}

int uf_ep_fault_unpack(uint64_t word, uint64_t call, uf_ep_fault *fault)
{
    if (word >> (64 - CALL_BITS) != (call & ((1u << CALL_BITS) - 1)))
        return 0;
    *fault = (uf_ep_fault){.kind = (int32_t)(word >> (VALUE_BITS + LANE_BITS) & ((1 << KIND_BITS) - 1)),
                           .token = -1,
                           .lane = (int32_t)(word >> VALUE_BITS & ((1 << LANE_BITS) - 1)),
                           .value = (int32_t)(uint32_t)word};
    return fault->kind != UF_EP_FAULT_NONE;
}

static const char *argument_name(int32_t argument)
{
    static const char *const names[] = {"x", "experts", "scales", "y", "out", "bias[0]", "bias[1]", "send", "back", "received"};
    return argument >= 0 && argument <= UF_EP_ARG_RECEIVED ? names[argument] : "an argument";
}

static int null_fail(int pe, const uf_ep_fault *fault)
{
    const char *name = argument_name(fault->lane);
    if (fault->value == 0)
        return uf_fail(UF_EINVAL, "PE %d: argument %s is NULL", pe, name);
    return uf_fail(UF_EINVAL, "PE %d: %s is NULL, but there are %d %s", pe, name, fault->value,
                   fault->lane == UF_EP_ARG_Y ? "rows to give back" : "tokens");
}

static int handle_fail(int pe, const uf_ep_fault *fault)
{
    static const char *const how[] = {"it is NULL", "it belongs to another uf_ep", "it is not open: it was freed",
                                      "something else is started on it: finish that first"};
    return uf_fail(UF_EINVAL, "PE %d: the handle cannot be used: %s", pe, how[fault->lane & UF_EP_HANDLE_BUSY]);
}

int uf_ep_fault_fail(const uf_ep_shape *shape, int pe, const uf_ep_fault *fault)
{
    switch (fault->kind) {
    case UF_EP_FAULT_NONE:
        return UF_OK;
    case UF_EP_FAULT_TOKENS:
        return uf_fail(UF_EINVAL, "PE %d has %d tokens to dispatch, but max_tokens is %d", pe, fault->value, shape->max_tokens);
    case UF_EP_FAULT_RANGE:
        return uf_fail(UF_EINVAL, "PE %d: token %d, lane %d names expert %d, but experts are 0 to %d, and -1 for none", pe,
                       fault->token, fault->lane, fault->value, shape->n_experts - 1);
    case UF_EP_FAULT_TWICE:
        return uf_fail(UF_EINVAL, "PE %d: token %d, lane %d names expert %d a second time: a token may name an expert once", pe,
                       fault->token, fault->lane, fault->value);
    case UF_EP_FAULT_NULL:
        return null_fail(pe, fault);
    case UF_EP_FAULT_ALIGNMENT:
        return uf_fail(UF_EINVAL, "PE %d: %s is not aligned to its elements", pe, argument_name(fault->lane));
    case UF_EP_FAULT_SIZE:
        return uf_fail(UF_EINVAL, "PE %d: %s.size is %d, but this library's struct is larger", pe, argument_name(fault->lane),
                       fault->value);
    case UF_EP_FAULT_HANDLE:
        return handle_fail(pe, fault);
    case UF_EP_FAULT_GRADIENTS:
        return uf_fail(UF_EINVAL, "PE %d: send.gradients needs the handle of an earlier dispatch", pe);
    case UF_EP_FAULT_HANDLES:
        return uf_fail(UF_EAGAIN, "PE %d has all %d handles open: free one with uf_ep_handle_free or raise max_handles", pe,
                       fault->value);
    }
    return uf_fail(UF_EINTERNAL, "PE %d sent a fault of unknown kind %d", pe, (int)fault->kind);
}

int uf_ep_routing_check(const uf_ep_shape *shape, int pe, const int32_t *experts, int n_tokens)
{
    uf_ep_fault fault;
    return uf_ep_routing_find(shape, experts, n_tokens, &fault) ? uf_ep_fault_fail(shape, pe, &fault) : UF_OK;
}

/* The PE that owns an expert. */
static inline int owner_of(const uf_ep_shape *shape, int expert)
{
    return expert / (shape->n_experts / shape->n_pes);
}

/* The first lane of the token with the same owner as lane j: j itself if there is none before it. */
static inline int first_lane(const uf_ep_shape *shape, const int32_t *e, int j)
{
    int owner = owner_of(shape, e[j]);
    for (int l = 0; l < j; l++)
        if (e[l] >= 0 && owner_of(shape, e[l]) == owner)
            return l;
    return j;
}

void uf_ep_plan_counts(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, int32_t *rows)
{
    for (int d = 0; d < shape->n_pes; d++)
        rows[d] = 0;
    for (int i = 0; i < n_tokens; i++) {
        const int32_t *e = experts + (size_t)i * (size_t)shape->top_k;
        for (int j = 0; j < shape->top_k; j++)
            if (e[j] >= 0 && first_lane(shape, e, j) == j)
                rows[owner_of(shape, e[j])]++;
    }
}

void uf_ep_plan_slots(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, int32_t *rows, int32_t *slot)
{
    for (int d = 0; d < shape->n_pes; d++)
        rows[d] = 0;
    for (int i = 0; i < n_tokens; i++) {
        const int32_t *e = experts + (size_t)i * (size_t)shape->top_k;
        int32_t *out = slot + (size_t)i * (size_t)shape->top_k;
        for (int j = 0; j < shape->top_k; j++) {
            if (e[j] < 0) {
                out[j] = -1;
                continue;
            }
            int first = first_lane(shape, e, j);
            out[j] = first < j ? out[first] : rows[owner_of(shape, e[j])]++;
        }
    }
}

void uf_ep_plan_prefix(const uf_ep_shape *shape, const int32_t *rows, int32_t *first)
{
    int32_t sum = 0;
    for (int d = 0; d < shape->n_pes; d++) {
        first[d] = sum;
        sum += rows[d];
    }
}

int32_t uf_ep_plan_row(const uf_ep_shape *shape, const int32_t *counts, int s, int d)
{
    int32_t row = 0;
    for (int before = 0; before < s; before++)
        row += counts[(size_t)before * (size_t)shape->n_pes + (size_t)d];
    return row;
}

int uf_ep_plan_owners(const uf_ep_shape *shape, const int32_t *e, int *owners, int *lane)
{
    /* From the highest lane down: an owner's highest lane is where it is met first; what remains is to turn the list round. */
    int n = 0;
    for (int j = shape->top_k - 1; j >= 0; j--) {
        if (e[j] < 0)
            continue;
        int owner = owner_of(shape, e[j]), k = 0;
        while (k < n && owners[k] != owner)
            k++;
        if (k == n) {
            owners[n] = owner;
            lane[n++] = j;
        }
    }
    for (int a = 0, b = n - 1; a < b; a++, b--) {
        int o = owners[a], l = lane[a];
        owners[a] = owners[b], lane[a] = lane[b];
        owners[b] = o, lane[b] = l;
    }
    return n;
}

void uf_ep_plan_lanes(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, int32_t *lanes, int32_t *place)
{
    for (int d = 0; d < shape->n_pes; d++)
        lanes[d] = 0;
    for (size_t l = 0; l < (size_t)n_tokens * (size_t)shape->top_k; l++)
        place[l] = experts[l] < 0 ? -1 : lanes[owner_of(shape, experts[l])]++;
}

void uf_ep_plan_experts(int n_local, int alignment, const int32_t *rows, int32_t *aligned, int32_t *first)
{
    int32_t sum = 0;
    for (int l = 0; l < n_local; l++) {
        aligned[l] = (rows[l] + alignment - 1) / alignment * alignment;
        first[l] = sum;
        sum += aligned[l];
    }
    first[n_local] = sum;
}

void uf_ep_plan_expand(int n_local, int top_k, const int32_t *experts, int n, const int32_t *first, int32_t *next, int32_t *row)
{
    for (int l = 0; l < n_local; l++)
        next[l] = first[l];
    for (size_t l = 0; l < (size_t)n * (size_t)top_k; l++)
        row[l] = experts[l] < 0 ? -1 : next[experts[l]]++;
}

int uf_ep_plan_groups(const int32_t *group, const int *pes, int n, int32_t *order)
{
    /* From the last PE down, as the owners of a token are found. */
    int found = 0;
    for (int i = n - 1; i >= 0; i--) {
        int k = 0;
        while (k < found && order[k] != group[pes[i]])
            k++;
        if (k == found)
            order[found++] = group[pes[i]];
    }
    for (int a = 0, b = found - 1; a < b; a++, b--) {
        int32_t g = order[a];
        order[a] = order[b];
        order[b] = g;
    }
    return found;
}
