/* tcp_exchange.c - PE 0's side of the TCP bootstrap once the world stands: collects the parts of each step, answers, relays news.
 *
 * All that needs one answer for everybody is decided here and sent to everybody: the result of a step, its refusal, or that no step
 * can be complete any more. The parts of one step are kept until the next one, so that steady use allocates only results. */
#include "bootstrap/tcp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void root_break(uf_tcp *t, int code, const char *text)
{
    if (uf_tcp_note_broken(t, code, text))
        uf_tcp_root_tell(t, UF_FRAME_BROKEN, code, 0, t->round, text, NULL);
}

void uf_tcp_root_give_up(uf_tcp *t)
{
    char pes[256], text[UF_BOOTSTRAP_TEXT];
    for (int i = 0; i < t->base.n_pes; i++)
        t->missing[i] = !t->pes[i].has_part;
    snprintf(text, sizeof text,
             "%s did not come to exchange %u of the world in time; the world's setup calls are out of step now",
             uf_bootstrap_list_pes(t->missing, t->base.n_pes, pes, sizeof pes), t->round);
    root_break(t, UF_ETIMEDOUT, text);
}

/* Everybody's part is here: one answer for all. */
static void step_complete(uf_tcp *t)
{
    size_t bytes = t->pes[0].part_bytes;
    uf_tcp_message *result = NULL;
    t->result = UF_OK;
    for (int i = 1; i < t->base.n_pes && !t->result; i++) {
        if (t->pes[i].part_bytes == bytes)
            continue;
        t->result = UF_EMISMATCH;
        snprintf(t->result_text, sizeof t->result_text,
                 "PE %d brings %zu bytes to exchange %u of the world and PE 0 %zu: the PEs call different "
                 "functions, or with different arguments",
                 i, t->pes[i].part_bytes, t->round, bytes);
    }
    if (t->result)
        result = uf_tcp_message_new(t, UF_FRAME_RESULT, t->result, 0, t->round, t->result_text, strlen(t->result_text));
    else
        result = uf_tcp_message_new(t, UF_FRAME_RESULT, UF_OK, 0, t->round, NULL, bytes * (size_t)t->base.n_pes);
    if (!result) {
        root_break(t, UF_ENOMEM, "PE 0 has no memory for the result of an exchange");
        return;
    }
    for (int i = 0; i < t->base.n_pes; i++) {
        if (!t->result && bytes)
            memcpy(result->data + UF_FRAME_BYTES + (size_t)i * bytes, t->pes[i].part, bytes);
        t->pes[i].has_part = false;
    }
    if (!t->result && bytes)
        memcpy(t->all, result->data + UF_FRAME_BYTES, bytes * (size_t)t->base.n_pes);
    uf_tcp_root_broadcast(t, result, NULL);
    t->n_parts = 0;
    t->round++;
    t->done = true;
}

/* Looks whether the step is over, or can never be. */
static void step_check(uf_tcp *t)
{
    char text[UF_BOOTSTRAP_TEXT];
    if (t->broken || !t->n_parts)
        return;
    if (t->n_parts == t->base.n_pes) {
        step_complete(t);
        return;
    }
    for (int i = 1; t->n_left && i < t->base.n_pes; i++) {
        if (!t->pes[i].left || t->pes[i].has_part)
            continue;
        snprintf(text, sizeof text, "PE %d has left the world while others wait for it in exchange %u", i, t->round);
        root_break(t, UF_EPEER, text);
        return;
    }
}

static int part_take(uf_tcp *t, int pe, const void *bytes, size_t n)
{
    uf_tcp_pe *p = &t->pes[pe];
    if (n > p->part_capacity) {
        unsigned char *grown = realloc(p->part, n);
        if (!grown)
            return uf_fail(UF_ENOMEM, "PE 0 has no memory for %zu bytes of PE %d in an exchange", n, pe);
        p->part = grown;
        p->part_capacity = n;
    }
    if (n)
        memcpy(p->part, bytes, n);
    p->part_bytes = n;
    p->has_part = true;
    t->n_parts++;
    return UF_OK;
}

int uf_tcp_root_enter(uf_tcp *t, const void *mine, size_t bytes)
{
    int rc = part_take(t, 0, mine, bytes);
    if (!rc)
        step_check(t);
    return rc;
}

static void root_gather(uf_tcp *t, uf_tcp_conn *conn, const uf_frame *frame, const unsigned char *payload)
{
    char text[128];
    if (t->broken)
        return; /* it has been told */
    if (frame->step != t->round || t->pes[conn->pe].has_part) {
        snprintf(text, sizeof text, "it sent a part of exchange %u while %u is collected", frame->step, t->round);
        uf_tcp_root_lost(t, conn, text);
        return;
    }
    if (part_take(t, conn->pe, payload, frame->length))
        root_break(t, UF_ENOMEM, uf_error_message());
    else
        step_check(t);
}

void uf_tcp_root_frame(uf_tcp *t, uf_tcp_conn *conn, const uf_frame *frame, const unsigned char *payload)
{
    char text[UF_BOOTSTRAP_TEXT];
    if (t->stage != UF_TCP_FORMED) {
        /* Its time is up, so this world cannot be any more: one answer for all. */
        if (frame->type == UF_FRAME_GIVE_UP)
            uf_tcp_root_form_late(t);
        else
            uf_tcp_root_lost(t, conn, "it sent a frame before the world was complete");
        return;
    }
    if (frame->type == UF_FRAME_GIVE_UP && frame->step == 0)
        return; /* about the creation, and crossed the welcome */
    if (frame->world != t->base.id) {
        uf_tcp_root_lost(t, conn, "it sent a frame of another world");
        return;
    }
    switch (frame->type) {
    case UF_FRAME_GATHER:
        root_gather(t, conn, frame, payload);
        break;
    case UF_FRAME_GIVE_UP:
        /* An older step's result is on its way already. */
        if (frame->step == t->round && !t->broken)
            uf_tcp_root_give_up(t);
        break;
    case UF_FRAME_NEWS:
        if (uf_tcp_note_news(t, frame->code < 0 ? frame->code : UF_EABORTED, conn->pe, (const char *)payload))
            uf_tcp_root_tell(t, UF_FRAME_NEWS, atomic_load(&t->news), conn->pe, 0, t->news_text, conn);
        break;
    case UF_FRAME_LEAVE:
        if (!t->pes[conn->pe].left)
            t->n_left++;
        t->pes[conn->pe].left = true;
        step_check(t);
        break;
    default:
        snprintf(text, sizeof text, "it sent a frame of type %u, which PE 0 does not know", frame->type);
        uf_tcp_root_lost(t, conn, text);
    }
}
