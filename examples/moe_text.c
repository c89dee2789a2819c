/* moe_text.c - see moe_text.h. */
#include "moe_text.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH = 12, LOOK_AHEAD = 400 };

static int fail(moe_text *t, const char *what, const char *path)
{
    snprintf(t->why, sizeof t->why, "%s %.160s: %s", what, path, strerror(errno));
    return -1;
}

static int add_file(moe_text *t, const char *path, size_t limit)
{
    unsigned char block[65536];
    size_t got = 1;
    FILE *f = fopen(path, "rb");
    if (!f)
        return fail(t, "cannot open", path);
    while (t->n < limit && (got = fread(block, 1, sizeof block, f)) > 0) {
        size_t n = got < limit - t->n ? got : limit - t->n;
        unsigned char *more = realloc(t->bytes, t->n + n);
        if (!more) {
            fclose(f);
            return fail(t, "no memory for", path);
        }
        t->bytes = more;
        memcpy(t->bytes + t->n, block, n);
        t->n += n;
    }
    int rc = ferror(f) ? fail(t, "cannot read", path) : 0;
    t->files++;
    fclose(f);
    return rc;
}

static int is_text(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (!strcmp(dot, ".md") || !strcmp(dot, ".txt") || !strcmp(dot, ".rst")) && strcmp(name, "CMakeLists.txt");
}

static int wanted(const struct dirent *e)
{
    return e->d_name[0] != '.' && strncmp(e->d_name, "build", 5) != 0;
}

static int add_path(moe_text *t, const char *path, size_t limit, int depth);

static int add_folder(moe_text *t, const char *path, size_t limit, int depth)
{
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, wanted, alphasort), rc = n < 0 ? fail(t, "cannot list", path) : 0;
    for (int i = 0; i < n; i++) {
        char inner[PATH_MAX];
        struct stat s;
        int fits = snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name) < (int)sizeof inner;
        if (!rc && fits && t->n < limit && !lstat(inner, &s) &&
            ((S_ISDIR(s.st_mode) && depth < DEPTH) || (S_ISREG(s.st_mode) && is_text(entries[i]->d_name))))
            rc = add_path(t, inner, limit, depth + 1);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static int add_path(moe_text *t, const char *path, size_t limit, int depth)
{
    struct stat s;
    if (stat(path, &s))
        return fail(t, "cannot find", path);
    return S_ISDIR(s.st_mode) ? add_folder(t, path, limit, depth) : add_file(t, path, limit);
}

int moe_text_read(char *const *paths, int n_paths, size_t limit, moe_text *t)
{
    static const char *const own[] = {MOE_TEXT_SOURCE, MOE_TEXT_INSTALLED};
    *t = (moe_text){0};
    int rc = 0;
    for (int i = 0; !rc && i < n_paths && t->n < limit; i++)
        rc = add_path(t, paths[i], limit, 0);
    for (size_t i = 0; !rc && n_paths == 0 && t->files == 0 && i < sizeof own / sizeof *own; i++) {
        struct stat s;
        if (!stat(own[i], &s))
            rc = add_path(t, own[i], limit, 0);
    }
    if (!rc && t->files == 0) {
        snprintf(t->why, sizeof t->why, "no text found: %s",
                 n_paths ? "the folders given have no *.md, *.txt or *.rst files" : "name files or a folder with --text");
        rc = -1;
    }
    return rc;
}

void moe_text_free(moe_text *t)
{
    free(t->bytes);
    *t = (moe_text){0};
}

size_t moe_text_cut(const unsigned char *bytes, size_t n, int pe, int n_pes)
{
    if (pe <= 0)
        return 0;
    if (pe >= n_pes)
        return n;
    size_t even = n / (size_t)n_pes * (size_t)pe + n % (size_t)n_pes * (size_t)pe / (size_t)n_pes, word = 0;
    size_t end = n - even < LOOK_AHEAD ? n : even + LOOK_AHEAD;
    for (size_t i = even; i < end; i++) {
        if (bytes[i] == '\n')
            return i + 1;
        if (!word && bytes[i] == ' ')
            word = i + 1;
    }
    return word ? word : even;
}
