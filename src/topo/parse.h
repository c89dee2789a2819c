/* parse.h - what the kernel writes into its files, as numbers. Pure; for any bytes at all. A function returns false, and leaves its output
 * alone, for whatever is not clearly the thing: garbage, zero where zero cannot be, numbers beyond what exists. */
#ifndef UF_TOPO_PARSE_H
#define UF_TOPO_PARSE_H

#include "topo/topo.h"

/* A decimal number with an optional sign and nothing behind it. */
bool uf_topo_parse_int(const char *text, int64_t *value);
/* "0x1d0f" or "1d0f". */
bool uf_topo_parse_hex(const char *text, uint32_t *value);
/* A verbs port's rate, "100 Gb/sec (4X EDR)" or "2.5 Gb/sec (1X SDR)". */
bool uf_topo_parse_rate(const char *text, uint64_t *mbps);
/* An interface's speed in Mb/s; -1 and 0 are what a driver says that does not know. */
bool uf_topo_parse_speed(const char *text, uint64_t *mbps);
/* A PCIe link, "32.0 GT/s PCIe" and "16": what it carries of payload, encoding and packet headers taken off. */
bool uf_topo_parse_link(const char *speed, const char *width, uint64_t *mbps);
/* "0-3,8,10-11". False for an empty set, too. */
bool uf_topo_parse_cpus(const char *text, uf_topo_cpus *cpus);
/* "0000:53:00.0": true if the first `length` characters are one PCI address. */
bool uf_topo_parse_bus(const char *text, size_t length);
/* "2.13.0g" -> 2, 13, 0: a version at the start of the text, missing parts 0. */
bool uf_topo_parse_version(const char *text, uint32_t version[3]);

#endif
