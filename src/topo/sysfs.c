/* sysfs.c - see sysfs.h. */
#include "topo/sysfs.h"
#include "base/error.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool join(char out[PATH_MAX], const char *root, const char *path)
{
    int length = snprintf(out, PATH_MAX, "%s%s", root, path);
    return length > 0 && length < PATH_MAX;
}

bool uf_topo_text(const char *root, const char *path, char *text, size_t bytes)
{
    char whole[PATH_MAX];
    struct stat status;
    if (!join(whole, root, path))
        return false;
    /* Non-blocking, so that opening a FIFO returns; what is no regular file is left alone. */
    int fd = open(whole, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return false;
    size_t length = 0;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        ssize_t got;
        while (length < bytes - 1 && (got = read(fd, text + length, bytes - 1 - length)) > 0)
            length += (size_t)got;
    }
    close(fd);
    text[length] = '\0';
    length = strlen(text);
    while (length > 0 && strchr(" \t\n\r", text[length - 1]))
        text[--length] = '\0';
    return length > 0;
}

bool uf_topo_text_in(const char *root, const char *directory, const char *name, char *text, size_t bytes)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    return length > 0 && (size_t)length < sizeof path && uf_topo_text(root, path, text, bytes);
}

bool uf_topo_target(const char *root, const char *path, char *target, size_t bytes)
{
    char whole[PATH_MAX], base[PATH_MAX] = "", real[PATH_MAX];
    if (!join(whole, root, path) || !realpath(whole, real) || (*root && !realpath(root, base)))
        return false;
    size_t length = strcmp(base, "/") == 0 ? 0 : strlen(base);
    if (strncmp(real, base, length) != 0 || real[length] != '/' || strlen(real + length) >= bytes)
        return false;
    memcpy(target, real + length, strlen(real + length) + 1);
    return true;
}

bool uf_topo_link_name(const char *root, const char *path, char *name, size_t bytes)
{
    char whole[PATH_MAX], to[PATH_MAX];
    if (!join(whole, root, path))
        return false;
    ssize_t length = readlink(whole, to, sizeof to - 1);
    if (length <= 0)
        return false;
    to[length] = '\0';
    const char *slash = strrchr(to, '/');
    const char *last = slash ? slash + 1 : to;
    if (!*last || strlen(last) >= bytes)
        return false;
    memcpy(name, last, strlen(last) + 1);
    return true;
}

bool uf_topo_exists(const char *root, const char *path)
{
    char whole[PATH_MAX];
    return join(whole, root, path) && access(whole, F_OK) == 0;
}

static int by_version(const void *a, const void *b)
{
    int order = strverscmp(a, b);
    return order ? order : strcmp(a, b);
}

int uf_topo_list(const char *root, const char *path, char (**names)[UF_TOPO_FILE_NAME], uint32_t *n, bool *more)
{
    char whole[PATH_MAX];
    char(*list)[UF_TOPO_FILE_NAME] = NULL;
    uint32_t count = 0, room = 0;
    int rc = UF_OK;
    bool cut = false;
    DIR *directory = join(whole, root, path) ? opendir(whole) : NULL;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (entry->d_name[0] == '.')
            continue;
        if (count == UF_TOPO_LIST_MAX) {
            cut = true;
            break;
        }
        if (count == room) {
            room = room ? 2 * room : 32;
            void *grown = realloc(list, room * sizeof *list);
            if (!grown) {
                rc = uf_fail(UF_ENOMEM, "no memory for the entries of %s", whole);
                break;
            }
            list = grown;
        }
        snprintf(list[count++], sizeof *list, "%s", entry->d_name);
    }
    if (directory)
        closedir(directory);
    if (rc || count == 0) {
        free(list);
        list = NULL;
        count = 0;
    } else {
        qsort(list, count, sizeof *list, by_version);
    }
    *names = list;
    *n = count;
    if (more)
        *more = cut;
    return rc;
}
