/* arena.h - memory that processes of one job share at one address, for the EFA device model: a file in /dev/shm with an allocator inside.
 *
 * Pointers in it are good in every process, which is what a model full of pointers needs. The first member makes it; the file goes when all
 * have joined, so that nothing is left however they end. What those left who died before is removed by whoever opens one next. Members are numbered (PEs) and known by
 * their process; several may be threads of one, which then share its mapping. Everything but open and close is called under the caller's own lock, which lies in the arena. */
#ifndef UF_FABRIC_EFA_ARENA_H
#define UF_FABRIC_EFA_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct uf_efa_arena uf_efa_arena; /* of this process */

enum { UF_EFA_ARENA_MEMBERS = 256 };

/* Joins the arena of this name as `member`; `make` fills a new one (its root is still NULL), under the file's lock. UF_EAGAIN: this process or
 * another one is that member already. UF_EUNSUPPORTED, UF_ENOMEM, UF_ESYSTEM, or what `make` said. */
int uf_efa_arena_open(const char *job, uint32_t number, uint32_t member, int (*make)(uf_efa_arena *arena, void *arg), void *arg,
                      uf_efa_arena **arena);
/* The same of the first of the arenas 0 to numbers - 1 that others have made and that this member is not in; if there is none, of the first that it can
 * make. UF_EAGAIN: all are taken. */
int uf_efa_arena_find(const char *job, uint32_t numbers, uint32_t member, int (*make)(uf_efa_arena *arena, void *arg), void *arg,
                      uf_efa_arena **arena);
void uf_efa_arena_close(uf_efa_arena *arena);
/* All members have joined: nobody needs the file's name any more, and it is removed. The memory stays. Any member may say so. */
void uf_efa_arena_hide(uf_efa_arena *arena);

/* What all members look for: set once by `make`. */
void uf_efa_arena_root_set(uf_efa_arena *arena, void *root);
void *uf_efa_arena_root(const uf_efa_arena *arena);
/* The process of a member, 0 if there is none. */
uint32_t uf_efa_arena_process(const uf_efa_arena *arena, uint32_t member);
/* UF_OK if this process may copy from and to that one's memory. */
int uf_efa_arena_reach(const uf_efa_arena *arena, uint32_t process);

/* As uf_model_host wants them; arg is the arena. */
void *uf_efa_arena_resize(void *arena, void *p, size_t bytes);
void uf_efa_arena_release(void *arena, void *p);
bool uf_efa_arena_copy(void *arena, uint32_t to_process, void *to, uint32_t from_process, const void *from, size_t bytes);

#endif
