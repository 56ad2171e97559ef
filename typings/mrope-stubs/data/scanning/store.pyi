from data.scanning.store import alone as alone
from data.scanning.store import begin as begin
from data.scanning.store import pending as pending
from data.scanning.store import rows_path as rows_path
from data.scanning.store import write_part as write_part
from data.scanning.store import write_parts as write_parts
