/* info_json.c - `unfence info --json`: the same facts as the page, under stable names. What is not known is null. */
#include "info.h"
#include <stdio.h>

static void add_text(json_object *object, const char *key, const char *value)
{
    json_object_object_add(object, key, json_object_new_string(value));
}

static void add_flag(json_object *object, const char *key, bool value)
{
    json_object_object_add(object, key, json_object_new_boolean(value));
}

/* UINT64_MAX stands for "not known" and "unlimited": both are null. */
static void add_whole(json_object *object, const char *key, uint64_t value)
{
    json_object_object_add(object, key, value == UINT64_MAX ? NULL : json_object_new_int64((int64_t)value));
}

static uint64_t depth(uint32_t value)
{
    return value == UINT32_MAX ? UINT64_MAX : value;
}

static json_object *build_object(void)
{
    info_build build = info_build_facts();
    json_object *object = json_object_new_object();
    add_text(object, "version", build.version);
    add_text(object, "type", build.build_type);
    add_text(object, "compiler", build.compiler);
    add_text(object, "architecture", build.architecture);
    add_text(object, "fabrics", build.fabrics);
    add_text(object, "sanitizers", build.sanitizers);
    return object;
}

static json_object *host_object(const host_facts *h)
{
    json_object *object = host_json();
    add_whole(object, "cores_online", h->cores_online);
    add_whole(object, "memory_available", h->memory_available);
    add_whole(object, "shm_bytes", h->shm_bytes);
    add_whole(object, "shm_available", h->shm_available);
    add_whole(object, "memlock", h->memlock);
    add_whole(object, "open_files", h->open_files);
    json_object_object_add(object, "ptrace_scope", h->ptrace_scope < 0 ? NULL : json_object_new_int(h->ptrace_scope));
    add_text(object, "attach", host_cma_sentence(h));
    json_object_object_add(object, "cpu_quota", h->cpu_quota > 0 ? json_object_new_double(h->cpu_quota) : NULL);
    add_whole(object, "throttled_periods", h->throttled);
    return object;
}

static json_object *provider_object(const info_provider *p)
{
    const uf_fabric_caps *c = &p->caps;
    json_object *object = json_object_new_object();
    add_text(object, "fabric", p->fabric);
    add_text(object, "provider", p->provider);
    add_flag(object, "usable", p->usable);
    if (!p->usable) {
        add_text(object, "refused", p->refused);
        return object;
    }
    add_text(object, "chosen", c->provider);
    add_text(object, "detail", c->detail);
    add_whole(object, "rails", c->n_rails);
    add_whole(object, "imm_bits", c->imm_bits);
    add_flag(object, "imm_placed", c->imm_placed);
    add_flag(object, "write_placed", c->write_placed);
    add_flag(object, "duplicates", c->duplicates);
    add_flag(object, "needs_registration", c->needs_desc);
    add_whole(object, "max_message", c->max_message);
    add_whole(object, "inline_bytes", c->inline_bytes);
    add_whole(object, "tx_depth", c->tx_depth);
    add_whole(object, "cq_depth", depth(c->cq_depth));
    add_whole(object, "receives", depth(c->max_receives));
    add_whole(object, "order_bytes", p->order_bytes);
    return object;
}

static json_object *memory_object(const info_memory *m)
{
    json_object *object = json_object_new_object();
    add_whole(object, "n_pes", m->n_pes);
    add_whole(object, "heap_bytes", m->heap);
    add_whole(object, "signal_bytes", m->signals);
    add_whole(object, "address_space", m->address_space);
    return object;
}

static json_object *settings_array(const uf_settings *settings)
{
    json_object *array = json_object_new_array();
    for (int id = 0; id < UF_SETTING_COUNT; id++) {
        const uf_setting_info *setting = uf_setting_describe((uf_setting_id)id);
        json_object *object = json_object_new_object();
        add_text(object, "name", setting->name);
        add_text(object, "value", settings->text[id]);
        add_text(object, "origin", settings->from_environment[id] ? "environment" : "default");
        json_object_array_add(array, object);
    }
    return array;
}

int info_print_json(const info_facts *facts)
{
    json_object *root = json_object_new_object();
    json_object *providers = json_object_new_array(), *warnings = json_object_new_array();
    for (size_t i = 0; i < facts->n_providers; i++)
        json_object_array_add(providers, provider_object(&facts->providers[i]));
    for (size_t i = 0; i < facts->n_warnings; i++)
        json_object_array_add(warnings, json_object_new_string(facts->warnings[i]));
    add_whole(root, "version", 1);
    json_object_object_add(root, "build", build_object());
    json_object_object_add(root, "host", host_object(&facts->host));
    json_object_object_add(root, "providers", providers);
    json_object_object_add(root, "gpu_memory", info_gpus_json(&facts->gpus));
    json_object_object_add(root, "memory", memory_object(&facts->memory));
    json_object_object_add(root, "settings", settings_array(&facts->settings));
    json_object_object_add(root, "warnings", warnings);
    int rc = printf("%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY)) < 0 ? -1 : 0;
    json_object_put(root);
    return fflush(stdout) != 0 ? -1 : rc;
}
