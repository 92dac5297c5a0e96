#include "hub/digest.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/find_symbol.h"

namespace moesaic::hub {
namespace {

// Functions of openssl/evp.h, which are the same in OpenSSL 1.1 and 3.
struct Crypto {
  void* (*context_new)() = nullptr;
  void (*context_free)(void*) = nullptr;
  const void* (*sha256)() = nullptr;
  const void* (*sha1)() = nullptr;
  int (*init)(void*, const void*, void*) = nullptr;
  int (*update)(void*, const void*, size_t) = nullptr;
  int (*final)(void*, unsigned char*, unsigned int*) = nullptr;
};

// The library stays loaded.
const Crypto* load_crypto() {
  static Crypto c;
  for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr && find_symbol(library, "EVP_MD_CTX_new", c.context_new) &&
        find_symbol(library, "EVP_MD_CTX_free", c.context_free) &&
        find_symbol(library, "EVP_sha256", c.sha256) && find_symbol(library, "EVP_sha1", c.sha1) &&
        find_symbol(library, "EVP_DigestInit_ex", c.init) &&
        find_symbol(library, "EVP_DigestUpdate", c.update) &&
        find_symbol(library, "EVP_DigestFinal_ex", c.final))
      return &c;
  }
  return nullptr;
}

const Crypto* crypto() {
  static const Crypto* const loaded = load_crypto();
  return loaded;
}

}  // namespace

void Digest::Free::operator()(void* context) const { crypto()->context_free(context); }

Result<Digest> Digest::make(bool is_sha256) {
  const Crypto* c = crypto();
  if (c == nullptr)
    return error(StatusCode::kUnsupported,
                 "getting models needs OpenSSL's libcrypto, for their sums: install libssl3 (Debian, Ubuntu) "
                 "or openssl-libs (Fedora)");
  Digest digest(c->context_new());
  if (digest.context_ == nullptr ||
      c->init(digest.context_.get(), is_sha256 ? c->sha256() : c->sha1(), nullptr) != 1)
    return error(StatusCode::kUnsupported, "OpenSSL refuses {} on this system",
                 is_sha256 ? "SHA-256" : "SHA-1");
  return digest;
}

Result<Digest> Digest::sha256() { return make(true); }

Result<Digest> Digest::git_blob(int64_t size) {
  ASSIGN_OR_RETURN(Digest digest, make(false));
  std::string head = fmt::format("blob {}", size);
  head.push_back('\0');
  digest.add(head);
  return digest;
}

void Digest::add(std::string_view bytes) {
  MOESAIC_CHECK(crypto()->update(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Digest::hex() {
  unsigned char sum[64];
  unsigned int size = 0;
  MOESAIC_CHECK(crypto()->final(context_.get(), sum, &size) == 1);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", sum[i]);
  return text;
}

}  // namespace moesaic::hub
