/* moe_text.h - the bytes that the example routes: files, folders of them, or the project's own documentation. */
#ifndef MOE_TEXT_H
#define MOE_TEXT_H

#include <stddef.h>

typedef struct moe_text {
    unsigned char *bytes;
    size_t n;
    int files;
    char why[256]; /* what is wrong, after a failure */
} moe_text;

/* Reads paths[0..n_paths) one after the other, up to `limit` bytes in all. A folder stands for its *.md, *.txt and *.rst files, sorted, at any
 * depth, without hidden and build folders. No paths: the project's documentation. 0, or -1 with *why naming the path and the cause. An
 * empty file is no error. */
int moe_text_read(char *const *paths, int n_paths, size_t limit, moe_text *text);
void moe_text_free(moe_text *text);
/* Where PE `pe` of `n_pes` begins in the text: near the even share, moved on to the start of a line or word, so shares are ragged. */
size_t moe_text_cut(const unsigned char *bytes, size_t n, int pe, int n_pes);

#endif
