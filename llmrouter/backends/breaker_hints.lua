-- Notes which replicas have just failed for one process, and tells all that anybody noted and that still hold.
--
-- KEYS  1 the hints: name by the end of its pause, in the server's milliseconds
-- ARGV  pairs of name and milliseconds of pause
-- Reply pairs of name and milliseconds left

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local longest = 0
for at = 1, #ARGV, 2 do
  local pause = tonumber(ARGV[at + 1])
  longest = math.max(longest, pause)
  redis.call('ZADD', KEYS[1], 'GT', string.format('%.0f', now + pause), ARGV[at])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if longest > redis.call('PTTL', KEYS[1]) then
  redis.call('PEXPIRE', KEYS[1], longest)
end
local reply = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for at = 2, #reply, 2 do
  reply[at] = tonumber(reply[at]) - now
end
return reply
