/* doctor_library.c - finds a shared library and looks whether it has a function, without loading it: loading runs its code, may fail for
 * reasons of its own, and is not possible for another host's copy. A function's name is in the file's string table, so looking for the word
 * between zero bytes is enough. */
#include "doctor.h"
#include "topo/sysfs.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where loaders of common distributions look, and where the EFA installer puts its own. */
static const char *const folders[] = {"/opt/amazon/efa/lib64",
                                      "/opt/amazon/efa/lib",
                                      "/usr/local/lib",
                                      "/usr/local/cuda/compat",
#if defined(__aarch64__)
                                      "/usr/lib/aarch64-linux-gnu",
                                      "/lib/aarch64-linux-gnu",
#else
                                      "/usr/lib/x86_64-linux-gnu",
                                      "/lib/x86_64-linux-gnu",
#endif
                                      "/usr/lib64",
                                      "/lib64",
                                      "/usr/lib",
                                      "/lib"};

static bool try_folder(const char *root, const char *folder, size_t length, const char *name, char *path, size_t bytes)
{
    char at[PATH_MAX];
    int n = snprintf(at, sizeof at, "%.*s/%s", (int)length, folder, name);
    if (n <= 0 || (size_t)n >= sizeof at || (size_t)n >= bytes || !uf_topo_exists(root, at))
        return false;
    memcpy(path, at, (size_t)n + 1);
    return true;
}

bool doctor_library_find(const char *root, const char *name, char *path, size_t bytes)
{
    const char *extra = *root ? NULL : getenv("LD_LIBRARY_PATH");
    for (const char *at = extra; at && *at;) {
        size_t length = strcspn(at, ":");
        if (length && try_folder(root, at, length, name, path, bytes))
            return true;
        at += length + (at[length] == ':');
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (try_folder(root, folders[i], strlen(folders[i]), name, path, bytes))
            return true;
    return false;
}

bool doctor_library_any(const char *root)
{
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (uf_topo_exists(root, folders[i]))
            return true;
    return false;
}

static bool contains_word(const char *image, size_t size, const char *word)
{
    size_t length = strlen(word);
    const char *at = image;
    /* Of a versioned name ("word@@EFA_1.1") only the word is in the table, ended by a zero. */
    while ((at = memmem(at, size - (size_t)(at - image), word, length))) {
        bool begins = at == image || at[-1] == '\0';
        bool ends = at + length < image + size && at[length] == '\0';
        if (begins && ends)
            return true;
        at++;
    }
    return false;
}

static bool lacks(const char *image, size_t size, const char *symbols, char *lacking, size_t bytes)
{
    char words[256];
    snprintf(words, sizeof words, "%s", symbols);
    for (char *rest = NULL, *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (contains_word(image, size, word))
            continue;
        snprintf(lacking, bytes, "%s", word);
        return true;
    }
    return false;
}

int doctor_library_has(const char *root, const char *path, const char *symbols, char *lacking, size_t bytes)
{
    char whole[PATH_MAX];
    struct stat status;
    int answer = -1, n = snprintf(whole, sizeof whole, "%s%s", root, path);
    if (n <= 0 || (size_t)n >= sizeof whole)
        return -1;
    int fd = open(whole, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -1;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
        size_t size = (size_t)status.st_size;
        char *image = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (image != MAP_FAILED) {
            answer = !lacks(image, size, symbols, lacking, bytes);
            munmap(image, size);
        }
    }
    close(fd);
    return answer;
}
