/* team.h - what team.c and collective.c share: a team, its words and its scratch.
 *
 * Each PE of a team has, at the same symmetric offset, a few words for sync, two arrival words per member (one by purpose), and a slot
 * of scratch per member. A word counts what came from one source since the team was made and is never reset while the team lives, so no
 * collective waits for another to be cleaned up. At most one put of a purpose is in flight from one source to one member: a counter shared
 * by two weak puts would tell how many came, not which. 64 teams share the space set aside at creation; two teams with no
 * common PE may have the same number. One collective at a time per team; different teams may be used by different threads. */
#ifndef UF_WORLD_TEAM_H
#define UF_WORLD_TEAM_H

#include "world/world.h"

enum {
    UF_MAX_TEAMS = 64,
    UF_SYNC_ROUNDS = 20, /* dissemination needs log2(n) */
    UF_TEAM_SMALL = 64,  /* bytes of the least slot */
};

/* Why a put travels; each has its own arrival word per source. */
typedef enum uf_team_purpose {
    UF_TEAM_PART = 0,   /* lands in the receiver's scratch */
    UF_TEAM_RESULT = 1, /* lands in the receiver's dst */
    UF_TEAM_PURPOSES = 2,
} uf_team_purpose;

typedef struct uf_team_arrivals {
    uint64_t *words;    /* [n] by source: counted by the network */
    uint64_t *expected; /* [n] what the words will have counted when all that was started is here */
} uf_team_arrivals;

struct uf_team {
    uf_world *world;
    uf_ctx *ctx;
    int id, n, me;
    int *pes;             /* [n] world numbers, in team order */
    uint64_t *sync_words; /* [UF_SYNC_ROUNDS] */
    uf_team_arrivals arrivals[UF_TEAM_PURPOSES];
    uint64_t syncs;
    unsigned char *scratch; /* [n] slots by source */
    size_t slot;            /* bytes */
    unsigned settled;       /* UF_SETTLED where the network may place late duplicates: users change what they receive */
    int failed;    /* the error that ended a collective half way: its counts are no good any more, so neither is the team */
    uf_team *next; /* in uf_teams */
};

struct uf_teams {
    pthread_mutex_t lock; /* of free_ids and all */
    uint64_t free_ids;
    uint64_t *words;        /* [UF_MAX_TEAMS][UF_SYNC_ROUNDS + UF_TEAM_PURPOSES * n_pes] */
    unsigned char *scratch; /* [UF_MAX_TEAMS] of scratch_bytes */
    size_t scratch_bytes;
    uf_team *world_team, *all;
};

/* Words that teams take from the arena of indexed signals. */
size_t uf_teams_words(int n_pes);
/* Refuses a NULL team, one with a collective that failed half way, a sick world. */
int uf_team_check(uf_team *t, const char *call);
int uf_team_sync(uf_team *t, const char *call);
/* One put with signal to member `to`, counted there as one arrival from us; and the wait for the next arrival from member `from`. An error ends
 * the team. `flags`: t->settled where the receiver's user may change dst, or anybody src, once it has arrived. UF_WEAK for parts in the
 * scratch: they are only read, and the library keeps late duplicates off their next use. */
int uf_team_send(uf_team *t, uf_team_purpose purpose, int to, void *dst, const void *src, size_t bytes, unsigned flags);
int uf_team_receive(uf_team *t, uf_team_purpose purpose, const char *call, int from);
/* Waits until the sources of all sends may be changed. */
int uf_team_flush(uf_team *t);
/* Gathers `bytes` (at most UF_TEAM_SMALL) of each member through the scratch: all[member * UF_TEAM_SMALL]. Includes a sync before. */
int uf_team_gather_small(uf_team *t, const char *call, const void *mine, size_t bytes, unsigned char *all);

#endif
