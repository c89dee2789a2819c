/* fuzz_settings.c - any environment at all is either read or refused with a sentence, and never breaks the reader.
 *
 * The input is an environment as text: one NAME=value a line, "UNFENCE_" put in front where a line begins with '.'. Besides memory errors it
 * checks what a reader of settings relies on: a refusal has a message, and an accepted number lies in its range. */
#include "base/error.h"
#include "base/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ENTRIES 64
#define ENTRY_BYTES  400

static void check(const uf_settings *settings)
{
    for (int id = 0; id < UF_SETTING_COUNT; id++) {
        const uf_setting_info *info = uf_setting_describe((uf_setting_id)id);
        if (strlen(settings->text[id]) >= UF_SETTING_TEXT)
            abort();
        if (info->type != UF_SETTING_STRING && (settings->number[id] < info->min || settings->number[id] > info->max))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char entries[MOST_ENTRIES][ENTRY_BYTES];
    static uf_settings settings;
    const char *environment[MOST_ENTRIES + 1];
    int n = 0;

    while (size > 0 && n < MOST_ENTRIES) {
        const uint8_t *end = memchr(data, '\n', size);
        size_t line = end ? (size_t)(end - data) : size;
        if (line > 0 && data[0] == '.')
            snprintf(entries[n], ENTRY_BYTES, "UNFENCE_%.*s", (int)(line - 1), (const char *)data + 1);
        else
            snprintf(entries[n], ENTRY_BYTES, "%.*s", (int)line, (const char *)data);
        uf_settings_nearest(entries[n]);
        environment[n] = entries[n];
        n++;
        line += end != NULL;
        data += line;
        size -= line;
    }
    environment[n] = NULL;
    if (uf_settings_load_from(environment, &settings) == UF_OK)
        check(&settings);
    else if (!*uf_error_message())
        abort();
    return 0;
}
