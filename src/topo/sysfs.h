/* sysfs.h - files below a root prefix, read so that no file can hang or harm the reader: regular files only (a FIFO or a device in their place
 * is refused), a bounded number of bytes, links resolved by the system (a loop is an error like any other). False means "there is
 * nothing to be known here", whatever the reason. Also for `unfence doctor`, which looks at /proc and /dev the same way. */
#ifndef UF_TOPO_SYSFS_H
#define UF_TOPO_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UF_TOPO_LIST_MAX  4096 /* entries of one directory that are looked at */
#define UF_TOPO_FILE_NAME 256

/* The file's text without trailing white space, cut at `bytes` - 1 and at its first zero byte. False if it cannot be read or is empty. */
bool uf_topo_text(const char *root, const char *path, char *text, size_t bytes);
/* The same of `directory`/`name`. */
bool uf_topo_text_in(const char *root, const char *directory, const char *name, char *text, size_t bytes);
/* Where `path` really is, links resolved, without the prefix ("/sys/devices/..."). False if it leads out of the prefix. */
bool uf_topo_target(const char *root, const char *path, char *target, size_t bytes);
/* The last component of where the link `path` points, whether that exists or not: the name of a driver. */
bool uf_topo_link_name(const char *root, const char *path, char *name, size_t bytes);
bool uf_topo_exists(const char *root, const char *path);
/* Names in a directory, numbers in them in order of value ("eth2" before "eth10"), those with a leading dot left out. *names is NULL if there
 * are none; the caller frees it. UF_ENOMEM is the only error. `more` (may be NULL): there were more than UF_TOPO_LIST_MAX. */
int uf_topo_list(const char *root, const char *path, char (**names)[UF_TOPO_FILE_NAME], uint32_t *n, bool *more);

#endif
