/* table.c - the schemes, in the order in which results are printed. */
#include "ordering.h"
#include <string.h>

extern const ordering_scheme ordering_unsignalled, ordering_floor, ordering_drain, ordering_drain_batch, ordering_nic_fence,
    ordering_sender_wait, ordering_reorder_window, ordering_message_ack, ordering_hw_counter, ordering_counted, ordering_ordered,
    ordering_strong;

const ordering_scheme *const ordering_schemes[] = {
    &ordering_unsignalled,
    &ordering_floor,
    &ordering_drain,
    &ordering_drain_batch,
    &ordering_nic_fence,
    &ordering_sender_wait,
    &ordering_reorder_window,
    &ordering_message_ack,
    &ordering_hw_counter,
    &ordering_counted,
    &ordering_ordered,
    &ordering_strong,
    NULL,
};

const ordering_scheme *ordering_scheme_find(const char *name)
{
    for (const ordering_scheme *const *s = ordering_schemes; *s; s++)
        if (strcmp((*s)->name, name) == 0)
            return *s;
    return NULL;
}
