# Run with cmake -P: fails when this CMake is too old for us.
cmake_minimum_required(VERSION 3.25...4.0)
