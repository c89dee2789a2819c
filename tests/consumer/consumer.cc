// consumer.cc - the public headers are C++ as well, and a refusal comes back as a code and a sentence.
#include <unfence/ep.h>
#include <unfence/unfence.h>

#include <cstdint>
#include <iostream>

int main()
{
    uf_world_options options = UF_WORLD_OPTIONS;
    uf_world *world = nullptr;
    void *memory = nullptr;

    options.pe = 0;
    options.n_pes = 1;
    if (uf_world_create(&options, &world) != UF_OK || uf_malloc(world, sizeof(std::uint64_t), 0, &memory) != UF_OK) {
        std::cerr << uf_error_message() << '\n';
        return 1;
    }
    auto *word = static_cast<std::uint64_t *>(memory);
    std::uint64_t old = 1;
    if (uf_atomic_fetch_add64(uf_ctx_default(world), word, 5, &old, 0) != UF_OK || old != 0 || *word != 5) {
        std::cerr << "fetch-add: " << uf_error_message() << '\n';
        return 1;
    }
    if (uf_put(uf_ctx_default(world), word, word, sizeof(*word), 7) == UF_OK || !*uf_error_message()) {
        std::cerr << "a put to PE 7 of a world of one was accepted\n";
        return 1;
    }
    std::cout << "refused as it should be: " << uf_error_message() << '\n';
    return uf_world_destroy(world) == UF_OK ? 0 : 1;
}
