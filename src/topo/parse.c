/* parse.c - see parse.h. No strtod and no scanf: they take what the kernel never writes (inf, hex floats, the locale's comma). */
#include "topo/parse.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    MBPS_MAX = 100000000,      /* 100 Tb/s: nothing is as fast, so more is garbage */
    LINK_WIDTH_MAX = 32,       /* lanes */
    LINK_PAYLOAD_PERCENT = 90, /* headers, acknowledgements and flow control take the rest */
};

bool uf_topo_parse_int(const char *text, int64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)*text) && !((*text == '-' || *text == '+') && isdigit((unsigned char)text[1])))
        return false;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || *end)
        return false;
    *value = number;
    return true;
}

bool uf_topo_parse_hex(const char *text, uint32_t *value)
{
    char *end;
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        text += 2;
    if (!isxdigit((unsigned char)*text) || strlen(text) > 8)
        return false;
    unsigned long number = strtoul(text, &end, 16);
    if (*end || number >= UF_TOPO_UNKNOWN)
        return false;
    *value = (uint32_t)number;
    return true;
}

/* Thousandths of the number that `*at` begins with, at most three places behind the point; moves *at behind it. */
static bool read_thousandths(const char **at, uint64_t *value)
{
    const char *p = *at;
    uint64_t whole = 0, fraction = 0, unit = 100;
    if (!isdigit((unsigned char)*p))
        return false;
    for (; isdigit((unsigned char)*p); p++) {
        whole = whole * 10 + (uint64_t)(*p - '0');
        if (whole > MBPS_MAX)
            return false;
    }
    if (*p == '.') {
        for (p++; isdigit((unsigned char)*p); p++, unit /= 10)
            fraction += (uint64_t)(*p - '0') * unit;
    }
    *at = p;
    *value = whole * 1000 + fraction;
    return true;
}

bool uf_topo_parse_rate(const char *text, uint64_t *mbps)
{
    uint64_t value; /* thousandths of Gb/s are Mb/s */
    if (!read_thousandths(&text, &value) || value == 0 || value > MBPS_MAX)
        return false;
    text += strspn(text, " ");
    if (strncmp(text, "Gb/s", 4) != 0)
        return false;
    *mbps = value;
    return true;
}

bool uf_topo_parse_speed(const char *text, uint64_t *mbps)
{
    int64_t value;
    if (!uf_topo_parse_int(text, &value) || value <= 0 || value > MBPS_MAX)
        return false;
    *mbps = (uint64_t)value;
    return true;
}

bool uf_topo_parse_link(const char *speed, const char *width, uint64_t *mbps)
{
    /* Megatransfers a second of a lane, and how many bits of so many carry data. */
    static const struct {
        uint64_t mega, data, of;
    } generations[] = {{2500, 8, 10}, {5000, 8, 10}, {8000, 128, 130}, {16000, 128, 130}, {32000, 128, 130}, {64000, 242, 256}};
    uint64_t mega;
    int64_t lanes;
    if (!read_thousandths(&speed, &mega) || strncmp(speed + strspn(speed, " "), "GT/s", 4) != 0)
        return false;
    if (!uf_topo_parse_int(width, &lanes) || lanes <= 0 || lanes > LINK_WIDTH_MAX)
        return false;
    for (size_t i = 0; i < sizeof generations / sizeof *generations; i++) {
        if (generations[i].mega == mega) {
            *mbps = mega * (uint64_t)lanes * generations[i].data / generations[i].of * LINK_PAYLOAD_PERCENT / 100;
            return true;
        }
    }
    return false;
}

static bool read_cpu(const char **at, uint32_t *cpu)
{
    uint32_t value = 0;
    const char *p = *at;
    if (!isdigit((unsigned char)*p))
        return false;
    for (; isdigit((unsigned char)*p); p++) {
        value = value * 10 + (uint32_t)(*p - '0');
        if (value >= UF_TOPO_CPUS)
            return false;
    }
    *at = p;
    *cpu = value;
    return true;
}

bool uf_topo_parse_cpus(const char *text, uf_topo_cpus *cpus)
{
    uf_topo_cpus set = {0};
    for (;;) {
        uint32_t first, last;
        if (!read_cpu(&text, &first))
            return false;
        last = first;
        if (*text == '-') {
            text++;
            if (!read_cpu(&text, &last) || last < first)
                return false;
        }
        for (uint32_t cpu = first; cpu <= last; cpu++) {
            set.count += !uf_topo_cpus_has(&set, cpu);
            set.bits[cpu / 64] |= 1ull << (cpu % 64);
        }
        if (!*text)
            break;
        if (*text++ != ',')
            return false;
    }
    *cpus = set;
    return true;
}

bool uf_topo_parse_bus(const char *text, size_t length)
{
    static const char form[] = "hhhh:hh:hh.d";
    /* Domains of virtual hosts have five digits and more: "10000:e1:00.0". */
    while (length > sizeof form - 1 && length <= 15 && isxdigit((unsigned char)*text)) {
        text++;
        length--;
    }
    if (length != sizeof form - 1)
        return false;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        bool fits = form[i] == 'h' ? isxdigit(c) != 0 : form[i] == 'd' ? c >= '0' && c <= '7' : c == (unsigned char)form[i];
        if (!fits)
            return false;
    }
    return true;
}

bool uf_topo_parse_version(const char *text, uint32_t version[3])
{
    uint32_t parts[3] = {0};
    if (!isdigit((unsigned char)*text))
        return false;
    for (int i = 0; i < 3 && isdigit((unsigned char)*text); i++) {
        for (; isdigit((unsigned char)*text); text++) {
            if (parts[i] > 100000)
                return false;
            parts[i] = parts[i] * 10 + (uint32_t)(*text - '0');
        }
        if (*text == '.')
            text++;
    }
    memcpy(version, parts, sizeof parts);
    return true;
}
