/* arena.h - memory that processes of one job share at one address, for the EFA device model: a file in /dev/shm with an allocator inside.
 *
 * Pointers in it are good in every process, which is what a model full of pointers needs. The first member makes it, the last one that
 * leaves removes it; what dead processes left is found and removed by whoever opens one next. Members are numbered (PEs) and known by
 * their process. Everything but open and close is called under the caller's own lock, which lies in the arena. */
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
void uf_efa_arena_close(uf_efa_arena *arena);

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
