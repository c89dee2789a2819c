/* settings_doc.c - prints docs/settings.md from the table of settings, so that the page cannot say anything else than the
 * library does. `make docs` writes the page; a test compares it. */
#include "base/settings.h"

#include <stdio.h>

static const char head[] =
    "# Settings\n"
    "\n"
    "Every environment variable that Unfence reads. This page is printed from `src/base/settings.def` by `make docs`; do not\n"
    "edit it.\n"
    "\n"
    "A variable set to nothing counts as not set. A value that is not accepted is refused when a world is created, with the\n"
    "variable, the value and what is accepted. A name that begins with `UNFENCE_` and is not in this table is warned about,\n"
    "once, with the nearest name that is. What a program sets in `uf_world_options` goes before the environment.\n"
    "`unfence info` prints the values in force and where each comes from.\n"
    "\n"
    "Sizes take K, M, G or T for powers of 1024; durations take ns, us, ms, s or m, and are seconds without one.\n"
    "\n"
    "| variable | default | accepts | meaning |\n"
    "|---|---|---|---|\n";

/* A bar would end the cell. */
static void print_cell(const char *text)
{
    fputs(" ", stdout);
    for (; *text; text++) {
        if (*text == '|')
            putchar('\\');
        putchar(*text);
    }
    fputs(" |", stdout);
}

int main(void)
{
    char accepts[160];

    fputs(head, stdout);
    for (int id = 0; id < UF_SETTING_COUNT; id++) {
        const uf_setting_info *info = uf_setting_describe((uf_setting_id)id);
        uf_setting_accepts((uf_setting_id)id, accepts, sizeof(accepts));
        printf("| `%s` |", info->name);
        print_cell(*info->def ? info->def : "(empty)");
        print_cell(accepts);
        print_cell(info->doc);
        putchar('\n');
    }
    return ferror(stdout) || fflush(stdout) ? 1 : 0;
}
