/* team.h - what team.c and collective.c share: a team, its words and its scratch.
 *
 * Each PE of a team has, at the same symmetric offset, a few words for sync, one arrival word per member, and a slot of scratch per
 * member. A word counts what came from one source since the team was made and is never reset while the team lives, so no
 * collective waits for another to be cleaned up. 64 teams share the space set aside at creation; two teams with no
 * common PE may have the same number. */
#ifndef UF_WORLD_TEAM_H
#define UF_WORLD_TEAM_H

#include "world/world.h"

enum {
    UF_MAX_TEAMS = 64,
    UF_SYNC_ROUNDS = 20, /* dissemination needs log2(n) */
};

struct uf_team {
    uf_world *world;
    uf_ctx *ctx;
    int id, n, me;
    int *pes;             /* [n] world numbers, in team order */
    uint64_t *sync_words; /* [UF_SYNC_ROUNDS] */
    uint64_t *arrivals;   /* [n] by source */
    uint64_t *expected;   /* [n] what the arrival words will have counted when all that was started is here */
    uint64_t syncs;
    unsigned char *scratch; /* [n] slots by source */
    size_t slot;            /* bytes */
    unsigned settled;       /* UF_SETTLED where the network may place late duplicates: users change what they receive */
    uf_team *next;          /* in uf_teams */
};

struct uf_teams {
    uint64_t free_ids;
    uint64_t *words;        /* [UF_MAX_TEAMS][UF_SYNC_ROUNDS + n_pes] */
    unsigned char *scratch; /* [UF_MAX_TEAMS] of scratch_bytes */
    size_t scratch_bytes;
    uf_team *world_team, *all;
};

/* Words that teams take from the arena of indexed signals. */
size_t uf_teams_words(int n_pes);
/* Refuses a NULL team, a sick world. */
int uf_team_check(uf_team *t, const char *call);
/* One put with signal to member `to`, counted there as one arrival from us; and the wait for the next arrival from member `from`. */
int uf_team_send(uf_team *t, int to, void *dst, const void *src, size_t bytes, unsigned flags);
int uf_team_receive(uf_team *t, const char *call, int from);
/* Gathers `bytes` (at most 64) of each member through the scratch: all[member * 64]. Includes a sync before. */
int uf_team_gather_small(uf_team *t, const char *call, const void *mine, size_t bytes, unsigned char *all);

#endif
