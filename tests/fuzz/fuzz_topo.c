/* fuzz_topo.c - whatever a file of sysfs holds is read as a fact within its bounds, or not at all.
 *
 * The input is text; a line break parts a link's speed from its width. What a parser accepts must be a value that can be calculated with:
 * a rate is never 0, a set of cores never empty and counted rightly. What it refuses must leave the output alone. */
#include "topo/parse.h"

#include <stdlib.h>
#include <string.h>

#define UNTOUCHED 0x5a5a5a5a5a5aull

static void require(int promise)
{
    if (!promise)
        abort();
}

static void check_rate(bool read, uint64_t mbps)
{
    require(read ? mbps > 0 && mbps <= 100000000 : mbps == UNTOUCHED);
}

static void check_rates(const char *text)
{
    uint64_t mbps = UNTOUCHED;
    bool read = uf_topo_parse_rate(text, &mbps);
    check_rate(read, mbps);
    mbps = UNTOUCHED;
    read = uf_topo_parse_speed(text, &mbps);
    check_rate(read, mbps);
}

static void check_link(char *text)
{
    uint64_t mbps = UNTOUCHED;
    char *width = strchr(text, '\n');
    if (!width)
        return;
    *width++ = '\0';
    bool read = uf_topo_parse_link(text, width, &mbps);
    check_rate(read, mbps);
}

static void check_cpus(const char *text)
{
    uf_topo_cpus cpus = {.count = 0};
    uint32_t n = 0;
    bool read = uf_topo_parse_cpus(text, &cpus);
    for (uint32_t cpu = 0; cpu < UF_TOPO_CPUS; cpu++)
        n += uf_topo_cpus_has(&cpus, cpu);
    require(n == cpus.count && read == (n > 0));
}

static void check_numbers(const char *text)
{
    int64_t number = 77;
    uint32_t hex = 77, version[3] = {77, 77, 77};
    require(uf_topo_parse_int(text, &number) || number == 77);
    require(uf_topo_parse_hex(text, &hex) ? hex != UF_TOPO_UNKNOWN : hex == 77);
    require(uf_topo_parse_version(text, version) || (version[0] == 77 && version[2] == 77));
    require(!uf_topo_parse_bus(text, strlen(text)) || (strlen(text) >= 12 && strlen(text) <= 15));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    require(text != NULL);
    memcpy(text, data, size);
    text[size] = 0;
    check_rates(text);
    check_cpus(text);
    check_numbers(text);
    check_link(text);
    free(text);
    return 0;
}
