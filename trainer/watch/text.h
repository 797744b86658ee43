// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::watch {

// "987", "12.3k", "1.53M", "2.10B": three digits.
std::string short_count(double count);
// "1,048,576".
std::string grouped(int64_t count);
// "512 B", "1.50 GiB": three digits.
std::string bytes_text(double bytes);
// "0:07", "12:34", "1:02:03", "2d 03:04".
std::string clock_text(double seconds);
// "850 us", "1.25 ms", "3.20 s".
std::string seconds_text(double seconds);
// Four significant digits, or "nan", "inf", "-inf".
std::string loss_text(double loss);

}  // namespace fsdp::watch
